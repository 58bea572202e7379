/* An SMF whose PDU sessions are found by SUPI, by TEID and by DNN, in shared memory.
 *
 *   sm_sessions establish PATH SUPI TEID DNN   creates a session; TEIDs are unique
 *   sm_sessions packet PATH TEID               finds the session of a packet
 *   sm_sessions list PATH DNN                  lists and counts the sessions of a data network
 *   sm_sessions idle PATH DNN SUPI             sessions of a data network except one
 *   sm_sessions release PATH SUPI
 *   sm_sessions watch PATH COUNT               an event loop that prints COUNT changes
 *
 * Several processes can run at the same time. Any of them may be killed at any moment.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <nearstate.h>

/* A session expires unless it is renewed. */
#define LIFETIME_MS 3600000

struct smf {
    ns_region *region;
    ns_session *session;
    ns_namespace sessions, statistics;
};

static int fail(const char *what, ns_status status)
{
    fprintf(stderr, "%s: %s: %s\n", what, ns_status_name(status), ns_last_error());
    return 1;
}

/* The tags of sessions. Every process declares them; the first one builds the indexes. */
static ns_status declare(struct smf *smf)
{
    ns_tag_schema tags[] = {
        {ns_text("supi"), NS_TAG_UNIQUE | NS_TAG_REQUIRED},
        {ns_text("teid"), NS_TAG_UNIQUE},
        {ns_text("dnn"), NS_TAG_COUNTED},
    };
    return ns_namespace_add_tags(smf->session, smf->sessions, (ns_tag_schema_list){tags, 3});
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
        status = ns_namespace_open(smf->session, ns_text("sm-sessions"), NS_KIND_VALUE,
                                   &smf->sessions);
    if (status == NS_OK)
        status = ns_namespace_open(smf->session, ns_text("statistics"), NS_KIND_COUNTERS,
                                   &smf->statistics);
    if (status == NS_OK)
        status = declare(smf);
    return status;
}

static void stop(struct smf *smf)
{
    ns_session_close(smf->session);
    ns_region_detach(smf->region);
}

static int establish(struct smf *smf, char **words)
{
    ns_tag tags[] = {
        {ns_text("supi"), ns_text(words[0])},
        {ns_text("teid"), ns_text(words[1])},
        {ns_text("dnn"), ns_text(words[2])},
    };
    ns_metadata metadata = {tags, 3, 0};
    ns_status status = ns_session_now_ms(smf->session, &metadata.expires_ms);
    metadata.expires_ms += LIFETIME_MS;
    if (status == NS_OK)
        status = ns_put_with_metadata(smf->session, smf->sessions, ns_text(words[0]),
                                      ns_text("5qi=9 arp=8"), metadata, NULL);
    if (status == NS_TAG_TAKEN) {
        ns_counter_add(smf->session, smf->statistics, ns_text("refused"), 1);
        puts("the TEID is taken");
        return 0;
    }
    if (status == NS_OK)
        status = ns_counter_add(smf->session, smf->statistics, ns_text("established"), 1);
    if (status != NS_OK)
        return fail("establish", status);
    puts("established");
    return 0;
}

static int packet(struct smf *smf, char **words)
{
    ns_view view;
    ns_tag teid = {ns_text("teid"), ns_text(words[0])};
    ns_status status = ns_find(smf->session, smf->sessions, teid, &view);
    if (status == NS_NOT_FOUND) {
        puts("no session");
        return 0;
    }
    if (status != NS_OK)
        return fail("find", status);
    printf("%.*s: %.*s\n", (int)view.key.len, (const char *)view.key.data, (int)view.value.len,
           (const char *)view.value.data);
    ns_view_release(&view);
    return 0;
}

static bool show(void *context, const ns_view *view)
{
    (void)context;
    printf("%.*s\n", (int)view->key.len, (const char *)view->key.data);
    return true;
}

static int list(struct smf *smf, char **words)
{
    uint64_t count = 0;
    int64_t established = 0;
    ns_lookup lookup = {.tag = ns_text("dnn"), .kind = NS_LOOKUP_EQUAL, .value = ns_text(words[0])};
    ns_tag dnn = {lookup.tag, lookup.value};
    ns_status status = ns_find_all(smf->session, smf->sessions, lookup, show, NULL);
    if (status == NS_OK)
        status = ns_count_tagged(smf->session, smf->sessions, dnn, &count);
    if (status == NS_OK)
        status = ns_counter_read(smf->session, smf->statistics, ns_text("established"),
                                 &established);
    if (status != NS_OK && status != NS_NOT_FOUND)
        return fail("list", status);
    printf("%" PRIu64 " now, %" PRId64 " ever established\n", count, established);
    return 0;
}

static bool show_key(void *context, ns_bytes key)
{
    (void)context;
    printf("%.*s\n", (int)key.len, (const char *)key.data);
    return true;
}

/* A search with nested conditions, as in Nudsf. */
static int idle(struct smf *smf, char **words)
{
    ns_search_condition both[] = {
        {.kind = NS_SEARCH_EQ, .tag = {ns_text("dnn"), ns_text(words[0])}},
        {.kind = NS_SEARCH_NEQ, .tag = {ns_text("supi"), ns_text(words[1])}},
    };
    ns_search_condition all = {.kind = NS_SEARCH_AND, .units = both, .units_len = 2};
    ns_status status = ns_search(smf->session, smf->sessions, &all, show_key, NULL);
    return status == NS_OK ? 0 : fail("search", status);
}

static int release(struct smf *smf, char **words)
{
    ns_status status = ns_delete(smf->session, smf->sessions, ns_text(words[0]));
    if (status != NS_OK && status != NS_NOT_FOUND)
        return fail("release", status);
    puts(status == NS_OK ? "released" : "no session");
    return 0;
}

/* Reads pending events, at most as many as requested. */
static ns_status tell(ns_watch *watch, long *wanted)
{
    static const char *const kinds[] = {"?", "created", "updated", "deleted", "expired", "lost"};
    ns_watch_event event;
    ns_status status = NS_OK;
    while (*wanted > 0 && (status = ns_watch_next(watch, &event)) == NS_OK) {
        if (event.kind == NS_EVENT_LOST)
            printf("lost %" PRIu64 ": read the sessions again\n", event.lost);
        else
            printf("%s %.*s\n", kinds[event.kind], (int)event.key.len,
                   (const char *)event.key.data);
        fflush(stdout);
        *wanted -= 1;
    }
    return status == NS_NOT_FOUND ? NS_OK : status;
}

/* The event loop of the SMF. Its sockets would use the same epoll instance. */
static int watch(struct smf *smf, char **words)
{
    ns_watch *watch = NULL;
    long wanted = strtol(words[0], NULL, 10);
    int fd = -1, events = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    ns_status status = ns_watch_open(smf->session, smf->sessions, (ns_watch_filter){0}, &watch);
    if (status == NS_OK)
        status = ns_watch_fd(watch, &fd);
    if (status != NS_OK)
        return fail("watch", status);
    if (events < 0 || epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) < 0) {
        perror("epoll");
        return 1;
    }
    puts("watching");
    fflush(stdout);
    while (wanted > 0 && status == NS_OK) {
        int ready = epoll_wait(events, &event, 1, -1);
        if (ready < 0 && errno != EINTR)
            break;
        status = tell(watch, &wanted);
    }
    close(events);
    ns_watch_close(watch);
    return status == NS_OK ? 0 : fail("watch", status);
}

static const struct {
    const char *word;
    int words;
    int (*run)(struct smf *smf, char **words);
} commands[] = {
    {"establish", 3, establish}, {"packet", 1, packet},   {"list", 1, list},
    {"idle", 2, idle},           {"release", 1, release}, {"watch", 1, watch},
};

int main(int argc, char **argv)
{
    for (size_t index = 0; index < sizeof commands / sizeof commands[0]; index++) {
        if (argc != 3 + commands[index].words || strcmp(argv[1], commands[index].word) != 0)
            continue;
        struct smf smf = {0};
        ns_status status = start(&smf, argv[2]);
        int told = status == NS_OK ? commands[index].run(&smf, argv + 3) : fail(argv[2], status);
        stop(&smf);
        return told;
    }
    fprintf(stderr, "usage: %s establish|packet|list|idle|release|watch PATH ..\n", argv[0]);
    return 2;
}
