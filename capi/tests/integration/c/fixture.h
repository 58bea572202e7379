/* The fixture of the test programs. `PROGRAM TEST PATH`, with the path of a region that does not
 * exist, runs one test. Exits with 0 if it passes, otherwise prints the failed line. */
#ifndef NEARSTATE_TEST_FIXTURE_H
#define NEARSTATE_TEST_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nearstate.h>

#define CHECK(claim)                                                                               \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #claim, ns_last_error());   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == NS_OK)
#define IS(status, call) CHECK((call) == (status) && strlen(ns_last_error()) > 0)
#define LEN(list) (sizeof(list) / sizeof(list)[0])

static const char *path;
static ns_region *region;
static ns_session *session;
static ns_namespace values, blocks;

/* Additional set-up and clean-up of a program, if set. */
static void (*also_open)(void), (*also_close)(void);

static inline ns_bytes some(const void *data, size_t len)
{
    ns_bytes bytes = {(const uint8_t *)data, len};
    return bytes;
}

/* A region of 64 MiB with a namespace of each kind. */
static inline void start_region(void)
{
    ns_create_options options;
    OK(ns_create_options_default(&options));
    options.bytes_max = 64u << 20;
    OK(ns_region_create(path, &options, &region));
    OK(ns_session_open(region, &session));
    OK(ns_namespace_open(session, ns_text("values"), NS_KIND_VALUE, &values));
    OK(ns_namespace_open(session, ns_text("blocks"), NS_KIND_BLOCKS, &blocks));
    if (also_open != NULL)
        also_open();
}

/* Closes everything and checks the region. */
static inline void stop_region(void)
{
    ns_check_report report;
    if (also_close != NULL)
        also_close();
    OK(ns_session_close(session));
    OK(ns_region_detach(region));
    OK(ns_region_check(path, NULL, NULL, NULL, &report));
    CHECK(report.errors == 0);
    OK(ns_region_remove(path, NULL));
    CHECK(ns_region_attach(path, NULL, &region) == NS_SYSTEM);
}

struct promise {
    const char *name;
    void (*keep)(void);
};

#define TEST(name) {#name, name}

static inline int keep(int argc, char **argv, const struct promise *promises, size_t len)
{
    CHECK(argc == 3);
    path = argv[2];
    for (size_t index = 0; index < len; index++) {
        if (strcmp(promises[index].name, argv[1]) == 0) {
            start_region();
            promises[index].keep();
            stop_region();
            return 0;
        }
    }
    fprintf(stderr, "no promise %s\n", argv[1]);
    return 1;
}

#endif
