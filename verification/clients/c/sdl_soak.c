/* The requests of O-RAN's C++ SDL, sent through the library that it uses (hiredis). No registry has
 * the C++ SDL itself. `ok NAME` on standard output reports a part that passed. `kill` asks for a
 * SIGKILL of the node; a line on standard input reports that it runs again, with the same region.
 */

#include <hiredis/hiredis.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* Longer than anything takes on a busy machine. */
enum { WAIT_S = 30 };

static const char *host;

static redisContext *connect_to(const char *variable) {
    struct timeval wait = {WAIT_S, 0};
    redisContext *connection = redisConnect(host, atoi(getenv(variable)));
    CHECK(connection != NULL && connection->err == 0);
    CHECK(redisSetTimeout(connection, wait) == REDIS_OK);
    return connection;
}

/* The reply to a request. */
static redisReply *ask(redisContext *connection, const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *reply = redisvCommand(connection, format, args);
    va_end(args);
    CHECK(reply != NULL);
    if (reply->type == REDIS_REPLY_ERROR) fprintf(stderr, "%s: %s\n", format, reply->str);
    CHECK(reply->type != REDIS_REPLY_ERROR);
    return reply;
}

/* Whether the text of a reply, which it frees, is this one. */
static int is_text(redisReply *reply, const char *text) {
    int is_same = reply->str != NULL && strcmp(reply->str, text) == 0;
    freeReplyObject(reply);
    return is_same;
}

static int is_number(redisReply *reply, long long number) {
    int is_same = reply->type == REDIS_REPLY_INTEGER && reply->integer == number;
    freeReplyObject(reply);
    return is_same;
}

static int is_nil(redisReply *reply) {
    int is_same = reply->type == REDIS_REPLY_NIL;
    freeReplyObject(reply);
    return is_same;
}

/* The next message of a subscriber is this one. */
static void expect_message(redisContext *subscriber, const char *channel, const char *text) {
    redisReply *reply = NULL;
    CHECK(redisGetReply(subscriber, (void **)&reply) == REDIS_OK);
    CHECK(reply->type == REDIS_REPLY_ARRAY && reply->elements == 3);
    CHECK(strcmp(reply->element[0]->str, "message") == 0);
    CHECK(strcmp(reply->element[1]->str, channel) == 0);
    CHECK(strcmp(reply->element[2]->str, text) == 0);
    freeReplyObject(reply);
}

/* The client aborts its process if COMMAND does not list these. */
static void commands(redisContext *db) {
    const char *names[] = {"msetpub", "setie",  "setiepub", "setnxpub",
                           "delpub",  "delie", "deliepub"};
    redisReply *table = ask(db, "COMMAND");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int is_listed = 0;
        for (size_t row = 0; row < table->elements; row++)
            is_listed |= strcmp(table->element[row]->element[0]->str, names[i]) == 0;
        CHECK(is_listed);
    }
    freeReplyObject(table);
    puts("ok commands");
}

static void strings(redisContext *db) {
    redisReply *set = ask(db, "MSET {ns},a %b {ns},b %b", "\0\377\r\n", (size_t)4, "", (size_t)0);
    CHECK(is_text(set, "OK"));
    redisReply *values = ask(db, "MGET {ns},a {ns},b {ns},absent");
    CHECK(values->elements == 3 && values->element[0]->len == 4);
    CHECK(memcmp(values->element[0]->str, "\0\377\r\n", 4) == 0);
    CHECK(values->element[1]->len == 0 && values->element[2]->type == REDIS_REPLY_NIL);
    freeReplyObject(values);
    CHECK(is_text(ask(db, "SETIE {ns},b new %b", "", (size_t)0), "OK"));
    CHECK(is_nil(ask(db, "SETIE {ns},b newer old")));
    CHECK(is_number(ask(db, "DELIE {ns},b old"), 0));
    CHECK(is_number(ask(db, "DELIE {ns},b new"), 1));
    puts("ok strings");
}

static void scan(redisContext *db) {
    redisReply *keys = ask(db, "KEYS {ns},*");
    CHECK(keys->elements == 1 && strcmp(keys->element[0]->str, "{ns},a") == 0);
    freeReplyObject(keys);
    puts("ok scan");
}

static void pubsub(redisContext *db) {
    redisContext *subscriber = connect_to("NEARSTATE_PORT");
    freeReplyObject(ask(subscriber, "SUBSCRIBE ns"));
    CHECK(is_text(ask(db, "MSETPUB {ns},a 1 {ns},b 2 ns shareddatalayer::NO_PUBLISHER"), "OK"));
    expect_message(subscriber, "ns", "shareddatalayer::NO_PUBLISHER");
    CHECK(is_text(ask(db, "SETIEPUB {ns},a 3 1 ns set"), "OK"));
    expect_message(subscriber, "ns", "set");
    CHECK(is_nil(ask(db, "SETNXPUB {ns},a 4 ns unsent")));
    CHECK(is_text(ask(db, "SETNXPUB {ns},c 4 ns new"), "OK"));
    expect_message(subscriber, "ns", "new");
    CHECK(is_number(ask(db, "DELIEPUB {ns},c 4 ns removed"), 1));
    expect_message(subscriber, "ns", "removed");
    CHECK(is_number(ask(db, "DELPUB {ns},a {ns},b ns all"), 2));
    expect_message(subscriber, "ns", "all");
    redisFree(subscriber);
    puts("ok pubsub");
}

static void pipelines(redisContext *db) {
    for (int i = 0; i < 10000; i++)
        CHECK(redisAppendCommand(db, "SET {p},%d %d", i, i) == REDIS_OK);
    for (int i = 0; i < 10000; i++) {
        redisReply *reply = NULL;
        CHECK(redisGetReply(db, (void **)&reply) == REDIS_OK && is_text(reply, "OK"));
    }
    puts("ok pipelines");
}

static void sentinel(void) {
    redisContext *found = connect_to("NEARSTATE_SENTINEL_PORT");
    redisReply *master = ask(found, "SENTINEL get-master-addr-by-name dbaasmaster");
    CHECK(master->elements == 2 && strcmp(master->element[0]->str, host) == 0);
    CHECK(strcmp(master->element[1]->str, getenv("NEARSTATE_PORT")) == 0);
    freeReplyObject(master);
    freeReplyObject(ask(found, "SUBSCRIBE +switch-master"));
    redisFree(found);
    puts("ok sentinel");
}

static void reconnection(redisContext *db) {
    char line[32] = "";
    CHECK(is_text(ask(db, "MSET {ns},kept acknowledged"), "OK"));
    puts("kill");
    CHECK(fgets(line, sizeof line, stdin) != NULL && strcmp(line, "restarted\n") == 0);
    CHECK(redisCommand(db, "GET {ns},kept") == NULL);
    CHECK(redisReconnect(db) == REDIS_OK);
    CHECK(is_text(ask(db, "GET {ns},kept"), "acknowledged"));
    puts("ok reconnection");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    host = getenv("NEARSTATE_HOST");
    redisContext *db = connect_to("NEARSTATE_PORT");
    freeReplyObject(ask(db, "FLUSHALL"));
    commands(db);
    strings(db);
    scan(db);
    pubsub(db);
    pipelines(db);
    sentinel();
    reconnection(db);
    redisFree(db);
    return 0;
}
