/* Tests of several threads and signal handlers in one session: `threads TEST PATH`, with the path
 * of a region that does not exist. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fixture.h"

static ns_status put(const char *key)
{
    return ns_put(session, values, ns_text(key), ns_text("value"), NULL);
}

static ns_txn *open_txn;
static ns_record_for_update read_for_update;

static void *refused(void *view)
{
    CHECK(put("other") == NS_SESSION_BUSY);
    CHECK(strstr(ns_last_error(), "one session for each thread") != NULL);
    CHECK(ns_session_close(session) == NS_SESSION_BUSY);
    ns_namespace again;
    CHECK(ns_namespace_open(session, ns_text("n"), NS_KIND_VALUE, &again) == NS_SESSION_BUSY);
    ns_txn *txn;
    CHECK(ns_txn_begin(session, &txn) == NS_SESSION_BUSY);
    IS(NS_SESSION_BUSY, ns_view_release(view));
    IS(NS_SESSION_BUSY, ns_record_for_update_release(&read_for_update));
    /* The handle stays valid. */
    IS(NS_SESSION_BUSY, ns_txn_commit(open_txn));
    IS(NS_SESSION_BUSY, ns_txn_abort(open_txn));
    return NULL;
}

static bool in_callback(void *held, const ns_view *shown)
{
    pthread_t thread;
    (void)shown;
    CHECK(pthread_create(&thread, NULL, refused, held) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    /* The thread that is inside may call. */
    OK(put("nested"));
    return false;
}

static void a_second_thread_is_refused_while_one_is_inside(void)
{
    ns_view held;
    OK(put("key"));
    OK(ns_get(session, values, ns_text("key"), &held));
    OK(ns_get_for_update(session, values, ns_text("key"), &read_for_update));
    OK(ns_txn_begin(session, &open_txn));
    OK(ns_txn_put(open_txn, values, ns_text("later"), ns_text("done")));
    OK(ns_scan(session, values, in_callback, &held));
    /* The refused release kept the view. */
    CHECK(ns_session_close(session) == NS_BAD_ARGUMENT);
    CHECK(held.value.len == 5 && memcmp(held.value.data, "value", 5) == 0);
    OK(ns_view_release(&held));
    OK(ns_view_release(&held));
    OK(ns_view_release(NULL));
    OK(ns_record_for_update_release(&read_for_update));
    OK(ns_record_for_update_release(NULL));
    OK(ns_txn_commit(open_txn));
    OK(ns_get(session, values, ns_text("later"), &held));
    OK(ns_view_release(&held));
}

static void *refused_watch(void *opened)
{
    ns_watch *watch = opened;
    ns_watch_event event;
    int fd;
    CHECK(ns_watch_next(watch, &event) == NS_SESSION_BUSY);
    CHECK(ns_watch_wait(watch, 0) == NS_SESSION_BUSY);
    CHECK(ns_watch_fd(watch, &fd) == NS_SESSION_BUSY);
    CHECK(ns_watch_close(watch) == NS_SESSION_BUSY);
    return NULL;
}

static bool in_event(void *opened, ns_bytes name)
{
    pthread_t thread;
    ns_watch_event event;
    (void)name;
    CHECK(pthread_create(&thread, NULL, refused_watch, opened) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    /* The thread that is inside has an iteration to end. */
    CHECK(ns_watch_next(opened, &event) == NS_BAD_ARGUMENT);
    return true;
}

static void *next_event(void *opened)
{
    ns_watch_event event;
    CHECK(ns_watch_next(opened, &event) == NS_NOT_FOUND);
    return NULL;
}

static void a_second_thread_is_refused_while_one_is_inside_a_watch(void)
{
    ns_watch *opened;
    ns_watch_event event;
    pthread_t thread;
    OK(ns_watch_open(session, blocks, (ns_watch_filter){0}, &opened));
    ns_block_change change = {ns_text("auth"), ns_text("k"), false};
    OK(ns_patch(session, blocks, ns_text("ue"), (ns_block_change_list){&change, 1}, NULL));
    OK(ns_watch_next(opened, &event));
    OK(ns_watch_blocks(opened, in_event, opened));
    /* Between two calls it moves. */
    CHECK(pthread_create(&thread, NULL, next_event, opened) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(ns_watch_close(opened));
}

static sem_t inside, may_end;

static bool wait_in_callback(void *context, ns_bytes name)
{
    (void)context, (void)name;
    CHECK(sem_post(&inside) == 0);
    while (sem_wait(&may_end) != 0)
        ;
    return true;
}

static bool see_the_watch(void *opened, const ns_view *shown)
{
    (void)shown;
    OK(ns_watch_blocks(opened, wait_in_callback, NULL));
    return false;
}

static void *scan_and_wait(void *opened)
{
    OK(ns_scan(session, values, see_the_watch, opened));
    return NULL;
}

/* The child has no thread that could end the call, in which the session and a watch are. */
static void a_child_releases_what_another_thread_of_the_parent_was_in(void)
{
    ns_view held;
    ns_watch *opened;
    ns_watch_event event;
    pthread_t thread;
    int told = -1;
    ns_block_change change = {ns_text("auth"), ns_text("k"), false};
    CHECK(sem_init(&inside, 0, 0) == 0 && sem_init(&may_end, 0, 0) == 0);
    OK(put("key"));
    OK(ns_watch_open(session, blocks, (ns_watch_filter){0}, &opened));
    OK(ns_patch(session, blocks, ns_text("ue"), (ns_block_change_list){&change, 1}, NULL));
    OK(ns_watch_next(opened, &event));
    OK(ns_get(session, values, ns_text("key"), &held));
    OK(ns_get_for_update(session, values, ns_text("key"), &read_for_update));
    OK(ns_txn_begin(session, &open_txn));
    CHECK(pthread_create(&thread, NULL, scan_and_wait, opened) == 0);
    while (sem_wait(&inside) != 0)
        ;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        IS(NS_FORKED, put("other"));
        IS(NS_FORKED, ns_watch_next(opened, &event));
        OK(ns_view_release(&held));
        OK(ns_view_release(&held));
        OK(ns_record_for_update_release(&read_for_update));
        OK(ns_txn_abort(open_txn));
        OK(ns_watch_close(opened));
        OK(ns_session_close(session));
        OK(ns_region_detach(region));
        _exit(0);
    }
    CHECK(waitpid(child, &told, 0) == child && told == 0);
    CHECK(sem_post(&may_end) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(held.value.len == 5);
    OK(ns_view_release(&held));
    OK(ns_record_for_update_release(&read_for_update));
    OK(ns_txn_abort(open_txn));
    OK(ns_watch_close(opened));
}

static void *one_put(void *key)
{
    OK(put(key));
    return NULL;
}

static void a_session_moves_between_threads(void)
{
    for (int round = 0; round < 100; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, one_put, "moved") == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        OK(put("back"));
    }
}

static void *hammer(void *count)
{
    for (int round = 0; round < 20000; round++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", round % 100);
        ns_status status =
            round % 3 == 0 ? ns_delete(session, values, ns_text(key)) : put(key);
        CHECK(status == NS_OK || status == NS_NOT_FOUND || status == NS_SESSION_BUSY);
        *(int *)count += status != NS_SESSION_BUSY;
    }
    return NULL;
}

static void four_threads_on_one_session_damage_nothing(void)
{
    pthread_t threads[4];
    int done[4] = {0};
    for (int thread = 0; thread < 4; thread++)
        CHECK(pthread_create(&threads[thread], NULL, hammer, &done[thread]) == 0);
    int all = 0;
    for (int thread = 0; thread < 4; thread++) {
        CHECK(pthread_join(threads[thread], NULL) == 0);
        all += done[thread];
    }
    CHECK(all > 0);
    OK(put("key"));
}

static sigjmp_buf out;
static volatile sig_atomic_t busy, left, may_leave;

static void on_signal(int number)
{
    (void)number;
    ns_status status = put("handler");
    CHECK(status == NS_OK || status == NS_SESSION_BUSY);
    busy += status == NS_SESSION_BUSY;
}

static void on_signal_leave(int number)
{
    (void)number;
    if (!may_leave)
        return;
    may_leave = 0; /* Until `out` is set again. */
    left = 1;
    siglongjmp(out, 1);
}

static void start_timer(timer_t *timer, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec every = {{0, 50000}, {0, 50000}};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, timer) == 0);
    CHECK(timer_settime(*timer, 0, &every, NULL) == 0);
}

static void a_handler_that_interrupts_a_call_is_refused(void)
{
    timer_t timer;
    start_timer(&timer, on_signal);
    for (long calls = 0; busy < 20; calls++) {
        CHECK(calls < 100000000);
        OK(put("key"));
    }
    CHECK(timer_delete(timer) == 0);
}

static void a_call_that_a_handler_left_stops_the_session_only(void)
{
    timer_t timer;
    ns_session *own = session;
    volatile ns_status status = NS_OK;
    OK(ns_session_open(region, &session));
    OK(ns_namespace_open(session, ns_text("values"), NS_KIND_VALUE, &values));
    start_timer(&timer, on_signal_leave);
    /* The handler may also run between two calls: then the session goes on. */
    for (volatile long calls = 0; status == NS_OK; calls++) {
        CHECK(calls < 100000000);
        if (sigsetjmp(out, 1) == 0) {
            may_leave = 1;
            while (status == NS_OK)
                status = put("left");
            may_leave = 0;
        }
    }
    CHECK(timer_delete(timer) == 0);
    CHECK(left && status == NS_SESSION_BUSY);
    session = own;
    exit(0); /* The session keeps what it held until its process ends. */
}

int main(int argc, char **argv)
{
    const struct promise promises[] = {
        TEST(a_second_thread_is_refused_while_one_is_inside),
    TEST(a_second_thread_is_refused_while_one_is_inside_a_watch),
        TEST(a_child_releases_what_another_thread_of_the_parent_was_in),
    TEST(a_session_moves_between_threads),
        TEST(four_threads_on_one_session_damage_nothing),
        TEST(a_handler_that_interrupts_a_call_is_refused),
        TEST(a_call_that_a_handler_left_stops_the_session_only),
    };
    return keep(argc, argv, promises, LEN(promises));
}
