/*
 * Preloaded into a node (LD_PRELOAD): its CLOCK_REALTIME differs from that of the machine, as on a
 * host without NTP. SHIFTED_CLOCK names a file with the difference in milliseconds, as a signed
 * integer of 64 bits. A test that changes it steps the clock. Other clocks are those of the
 * machine.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift_ms;

__attribute__((constructor)) static void map_shift(void)
{
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *mapped =
        file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift_ms, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        perror("SHIFTED_CLOCK");
        _exit(2);
    }
    shift_ms = mapped;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, which, now);
    int is_wall = which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE;
    if (failed == 0 && is_wall && shift_ms != NULL) {
        int64_t shift = *shift_ms;
        now->tv_sec += shift / 1000;
        now->tv_nsec += shift % 1000 * 1000000;
        if (now->tv_nsec >= 1000000000) {
            now->tv_sec += 1;
            now->tv_nsec -= 1000000000;
        } else if (now->tv_nsec < 0) {
            now->tv_sec -= 1;
            now->tv_nsec += 1000000000;
        }
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now)
{
    struct timespec exact;
    time_t seconds = clock_gettime(CLOCK_REALTIME, &exact) == 0 ? exact.tv_sec : -1;
    if (now != NULL) {
        *now = seconds;
    }
    return seconds;
}
