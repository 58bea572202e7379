/* The quick start of the README: attaches a region, puts a record and reads it.
 *
 *   quick_start PATH
 */
#include <inttypes.h>
#include <stdio.h>

#include <nearstate.h>

static int put_and_get(const char *path)
{
    /* From here on as in the README. */
    ns_region *region;
    ns_session *session;                                   /* one per thread */
    ns_namespace ues;
    ns_view view;
    ns_bytes supi = ns_text("imsi-262011234567890");
    if (ns_region_attach_or_create(path, NULL, &region) != NS_OK
        || ns_session_open(region, &session) != NS_OK
        || ns_namespace_open(session, ns_text("ue-state"), NS_KIND_VALUE, &ues) != NS_OK
        || ns_put(session, ues, supi, ns_text("registered"), NULL) != NS_OK
        || ns_get(session, ues, supi, &view) != NS_OK)     /* zero copy, no system call */
        return fprintf(stderr, "%s\n", ns_last_error()), 1;
    printf("%.*s, version %" PRIu64 "\n", (int)view.value.len, (const char *)view.value.data,
           view.version);
    /* As far as here. */
    ns_view_release(&view);
    ns_session_close(session);
    ns_region_detach(region);
    return 0;
}

int main(int argc, char **argv)
{
    return argc == 2 ? put_and_get(argv[1]) : 2;
}
