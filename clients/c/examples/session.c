/* An SMF that keeps its PDU sessions in a region. It commits a context after every step of a
 * procedure. If it is killed, the next process continues from the last step.
 *
 *   session establish PATH SUPI    creates the context, and the region if needed
 *   session run PATH SUPI          endless handovers, one line per step; kill it
 *   session show PATH SUPI         shows the committed context
 *   session release PATH SUPI      deletes the context
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <nearstate.h>

/* The block that a handover changes: the tunnel to the radio network. Other blocks are kept. */
struct tunnel {
    uint32_t gnb_teid;
    uint32_t upf_teid;
    uint64_t steps;
    char gnb_address[16];
};

/* The indexes of the blocks that a procedure reads and changes. */
enum { TUNNEL, GROUPS };

/* The state of the process. */
struct smf {
    ns_region *region;
    ns_session *session;
    ns_namespace contexts;
    ns_block_layout *groups;
};

static const char *const default_qos = "5qi=9 arp=8 ambr-dl=200Mbps ambr-ul=50Mbps";

static int fail(const char *what, ns_status status)
{
    fprintf(stderr, "%s: %s: %s\n", what, ns_status_name(status), ns_last_error());
    return 1;
}

static ns_bytes bytes_of(const void *data, size_t len)
{
    ns_bytes bytes = {(const uint8_t *)data, len};
    return bytes;
}

static ns_status start(struct smf *smf, const char *path)
{
    ns_create_options options;
    ns_status status = ns_create_options_default(&options);
    if (status == NS_OK) {
        options.bytes_max = 64u << 20;
        status = ns_region_attach_or_create(path, &options, &smf->region);
    }
    if (status == NS_OK)
        status = ns_session_open(smf->region, &smf->session);
    if (status == NS_OK)
        status = ns_namespace_open(smf->session, ns_text("sm-context"), NS_KIND_BLOCKS,
                                   &smf->contexts);
    ns_bytes names[GROUPS] = {ns_text("tunnel")};
    if (status == NS_OK)
        status = ns_block_layout_open(smf->session, (ns_name_list){names, GROUPS}, &smf->groups);
    return status;
}

static void stop(struct smf *smf)
{
    ns_block_layout_close(smf->groups);
    ns_session_close(smf->session);
    ns_region_detach(smf->region);
}

static ns_status tunnel_of(ns_bytes block, struct tunnel *tunnel)
{
    if (block.len != sizeof *tunnel)
        return NS_DAMAGED;
    memcpy(tunnel, block.data, sizeof *tunnel);
    return NS_OK;
}

/* Reads the tunnel block of a view. */
static ns_status read_tunnel(const ns_view *view, struct tunnel *tunnel)
{
    ns_bytes block;
    ns_status status = ns_view_block(view, ns_text("tunnel"), &block);
    return status == NS_OK ? tunnel_of(block, tunnel) : status;
}

static int establish(struct smf *smf, ns_bytes supi)
{
    struct tunnel tunnel = {1, 0x10001, 0, "10.0.0.1"};
    ns_block_change blocks[] = {
        {ns_text("session"), ns_text("id=5 dnn=internet s-nssai=1:000001 type=ipv4"), false},
        {ns_text("qos"), ns_text(default_qos), false},
        {ns_text("tunnel"), bytes_of(&tunnel, sizeof tunnel), false},
    };
    ns_block_change_list changes = {blocks, sizeof blocks / sizeof blocks[0]};
    ns_status status = ns_patch_if_absent(smf->session, smf->contexts, supi, changes, NULL);
    if (status == NS_REFUSED) {
        puts("already exists");
        return 0;
    }
    if (status != NS_OK)
        return fail("establish", status);
    puts("established");
    return 0;
}

/* A handover changes the endpoint of the tunnel. */
static void hand_over(struct tunnel *tunnel)
{
    tunnel->steps += 1;
    tunnel->gnb_teid = (uint32_t)(tunnel->steps * 7);
    snprintf(tunnel->gnb_address, sizeof tunnel->gnb_address, "10.0.%u.%u",
             (unsigned)(tunnel->steps >> 8 & 255), (unsigned)(tunnel->steps & 255));
}

/* Reads a context and changes its tunnel block, unless the context changed meanwhile. */
static ns_status step(struct smf *smf, ns_bytes supi, struct tunnel *tunnel, uint64_t *version)
{
    ns_record_for_update context;
    ns_bytes groups[GROUPS];
    ns_status status = ns_get_for_update(smf->session, smf->contexts, supi, &context);
    if (status != NS_OK)
        return status;
    status = ns_record_for_update_blocks(&context, smf->groups, GROUPS, groups);
    if (status == NS_OK)
        status = tunnel_of(groups[TUNNEL], tunnel);
    if (status == NS_OK) {
        hand_over(tunnel);
        ns_indexed_change change = {TUNNEL, bytes_of(tunnel, sizeof *tunnel)};
        ns_indexed_change_list changes = {&change, 1};
        status = ns_record_for_update_patch(&context, smf->groups, changes, version);
    }
    ns_record_for_update_release(&context);
    return status;
}

static int run(struct smf *smf, ns_bytes supi)
{
    for (;;) {
        struct tunnel tunnel;
        uint64_t version;
        ns_status status = step(smf, supi, &tunnel, &version);
        if (status == NS_REFUSED)
            continue; /* Another worker changed it: read again. */
        if (status != NS_OK)
            return fail("step", status);
        printf("step %" PRIu64 " version %" PRIu64 "\n", tunnel.steps, version);
        fflush(stdout);
    }
}

static bool show_block(void *context, ns_bytes name, ns_bytes block)
{
    (void)context;
    if (name.len == strlen("tunnel") && memcmp(name.data, "tunnel", name.len) == 0)
        return true;
    printf("%.*s: %.*s\n", (int)name.len, (const char *)name.data, (int)block.len,
           (const char *)block.data);
    return true;
}

static int show(struct smf *smf, ns_bytes supi)
{
    struct tunnel tunnel;
    ns_view view;
    ns_status status = ns_get(smf->session, smf->contexts, supi, &view);
    if (status == NS_NOT_FOUND) {
        puts("no context");
        return 0;
    }
    if (status != NS_OK)
        return fail("read", status);
    status = ns_view_blocks(&view, show_block, NULL);
    if (status == NS_OK)
        status = read_tunnel(&view, &tunnel);
    if (status == NS_OK)
        printf("tunnel: gnb %s teid %" PRIu32 " upf teid %" PRIu32 "\nsteps: %" PRIu64 "\n",
               tunnel.gnb_address, tunnel.gnb_teid, tunnel.upf_teid, tunnel.steps);
    ns_view_release(&view);
    return status == NS_OK ? 0 : fail("show", status);
}

static int release(struct smf *smf, ns_bytes supi)
{
    ns_status status = ns_delete(smf->session, smf->contexts, supi);
    if (status != NS_OK && status != NS_NOT_FOUND)
        return fail("release", status);
    puts(status == NS_OK ? "released" : "no context");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s establish|run|show|release PATH SUPI\n", argv[0]);
        return 2;
    }
    struct smf smf = {0};
    ns_status status = start(&smf, argv[2]);
    int told = 2;
    if (status != NS_OK)
        told = fail(argv[2], status);
    else if (strcmp(argv[1], "establish") == 0)
        told = establish(&smf, ns_text(argv[3]));
    else if (strcmp(argv[1], "run") == 0)
        told = run(&smf, ns_text(argv[3]));
    else if (strcmp(argv[1], "show") == 0)
        told = show(&smf, ns_text(argv[3]));
    else if (strcmp(argv[1], "release") == 0)
        told = release(&smf, ns_text(argv[3]));
    stop(&smf);
    return told;
}
