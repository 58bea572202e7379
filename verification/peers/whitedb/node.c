/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A simulator node of `nearstate bench access` for WhiteDB.
 *
 * This program is free software: you can redistribute it and/or modify it under the terms of the
 * GNU General Public License as published by the Free Software Foundation, either version 3 of the
 * License, or (at your option) any later version. It is distributed in the hope that it will be
 * useful, but WITHOUT ANY WARRANTY; see COPYING.md in this folder.
 *
 * It links WhiteDB (GPL-3.0), so it is a program of its own and shares no code with the rest of the
 * repository. It talks with the orchestrator in lines of text:
 *
 *   whitedb-node keep     owns one database; removes it when its standard input ends
 *     <- create KEY BYTES            -> ready
 *     <- load COUNT BYTES SEED       -> progress N ... done
 *     <- index                       -> done
 *   whitedb-node node     one simulator node
 *     <- plan name=value ...         -> ready
 *     <- go AT_NS                    -> progress, sequence, span, histogram, verified, done
 *
 * Anything wrong is said as `error TEXT`, and the program ends with status 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <time.h>
#include <unistd.h>
#include <whitedb/dbapi.h>
#include <whitedb/indexapi.h>

enum { KEY_BYTES = 20, KEY_COLUMN = 0, VALUE_COLUMN = 1, COLUMNS = 2, BODIES_MAX = 64 };

/* ---- talking -------------------------------------------------------------------------------- */

static FILE *talk; /* the orchestrator; WhiteDB prints to stdout, which therefore goes to stderr */

static void say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(talk, format, arguments);
  va_end(arguments);
  fputc('\n', talk);
  fflush(talk);
}

static void fail(const char *what) {
  say("error whitedb: %s", what);
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t at_ns) {
  struct timespec t = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

/* ---- content: random bytes without NUL, every value certifies itself ------------------------ */

static uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

static uint64_t without_nul(uint64_t word) {
  uint64_t zero = (word - 0x0101010101010101u) & ~word & 0x8080808080808080u;
  return word | (zero >> 7);
}

static int has_nul(uint64_t word) {
  return ((word - 0x0101010101010101u) & ~word & 0x8080808080808080u) != 0;
}

static uint64_t sum(const char *bytes, size_t length) {
  uint64_t total = 0, word;
  size_t at = 0;
  for (; at + 8 <= length; at += 8) {
    memcpy(&word, bytes + at, 8);
    total += word;
  }
  if (at < length) {
    word = 0;
    memcpy(&word, bytes + at, length - at);
    total += word;
  }
  return total;
}

struct content {
  char *bodies[BODIES_MAX];
  uint64_t rest[BODIES_MAX]; /* the sum of all words after the first three */
  size_t bytes;
  unsigned count;
  uint64_t seed, state;
};

static void content_open(struct content *c, uint64_t seed, size_t bytes) {
  c->bytes = bytes;
  c->seed = seed;
  c->state = seed;
  c->count = (unsigned)((4u << 20) / bytes);
  if (c->count < 1) c->count = 1;
  if (c->count > BODIES_MAX) c->count = BODIES_MAX;
  for (unsigned b = 0; b < c->count; b++) {
    char *body = malloc(bytes + 9);
    if (!body) fail("out of memory for the values");
    for (size_t at = 0; at < bytes; at += 8) {
      uint64_t word = without_nul(mix(c->state++));
      size_t length = bytes - at < 8 ? bytes - at : 8;
      memcpy(body + at, &word, length);
    }
    body[bytes] = 0;
    c->bodies[b] = body;
    c->rest[b] = sum(body + 24, bytes - 24);
  }
}

/* The three first words make the value unique and its sum equal to mix(first word). */
static char *content_value(struct content *c, uint64_t record) {
  unsigned b = (unsigned)(record % c->count);
  char *body = c->bodies[b];
  uint64_t first = without_nul((mix(c->seed ^ record) << 32) | (mix(c->state++) & 0xFFFFFFFFu));
  uint64_t need = mix(first) - first - c->rest[b], second, third;
  do {
    second = without_nul(mix(c->state++));
    third = need - second;
  } while (has_nul(third));
  memcpy(body, &first, 8);
  memcpy(body + 8, &second, 8);
  memcpy(body + 16, &third, 8);
  return body;
}

static uint64_t first_word(const char *value) {
  uint64_t word;
  memcpy(&word, value, 8);
  return word;
}

static void key_of(char *key, uint64_t record) {
  memcpy(key, "imsi-", 5);
  for (int at = KEY_BYTES - 1; at >= 5; at--, record /= 10) key[at] = (char)('0' + record % 10);
  key[KEY_BYTES] = 0;
}

/* ---- the plan ------------------------------------------------------------------------------- */

struct plan {
  char address[64], kind[16], touch[8];
  uint64_t first, count, ops, loops, interval_us, record_bytes, seed, warm_up, node;
};

static const char *field(const char *line, const char *name, char *out, size_t bytes) {
  size_t length = strlen(name);
  for (const char *at = line; (at = strstr(at, name)); at += length) {
    if ((at == line || at[-1] == ' ') && at[length] == '=') {
      size_t n = strcspn(at + length + 1, " \n");
      if (n >= bytes) n = bytes - 1;
      memcpy(out, at + length + 1, n);
      out[n] = 0;
      return out;
    }
  }
  fail(name);
  return NULL;
}

static uint64_t number(const char *line, const char *name) {
  char text[32];
  return strtoull(field(line, name, text, sizeof text), NULL, 10);
}

static void plan_read(struct plan *p) {
  static char line[4096];
  if (!fgets(line, sizeof line, stdin) || strncmp(line, "plan ", 5) != 0) fail("no plan came");
  field(line, "address", p->address, sizeof p->address);
  field(line, "kind", p->kind, sizeof p->kind);
  field(line, "touch", p->touch, sizeof p->touch);
  p->node = number(line, "node");
  p->first = number(line, "first");
  p->count = number(line, "count");
  p->ops = number(line, "ops");
  p->loops = number(line, "loops");
  p->interval_us = number(line, "interval_us");
  p->record_bytes = number(line, "record_bytes");
  p->seed = number(line, "seed");
  p->warm_up = number(line, "warm_up");
}

/* ---- one run -------------------------------------------------------------------------------- */

struct run {
  void *db;
  struct plan plan;
  struct content content;
  char *keys;        /* in the order in which they are asked for */
  char *keys_sorted; /* in record order, for the dependent chain */
  char *copy;
  uint64_t *stamps; /* nanoseconds of each operation of a stamped pass */
  uint64_t stamp_ns, stamped, verified, sink;
};

static char *value_of(struct run *r, void *record) {
  wg_int encoded = wg_get_field(r->db, record, VALUE_COLUMN);
  char *value = wg_decode_str(r->db, encoded);
  if (!value) fail("a record has no value");
  return value;
}

/* Reads every byte (or two words) and checks the value against its own certificate. */
static void touch(struct run *r, const char *value) {
  uint64_t first = first_word(value);
  if (r->plan.touch[0] == 'w') {
    r->sink += first ^ (unsigned char)value[r->plan.record_bytes - 1];
    r->verified++;
    return;
  }
  uint64_t total = sum(value, r->plan.record_bytes);
  if (total != mix(first)) fail("a value read is not one that was written");
  r->sink += total;
  r->verified++;
}

static void *find(struct run *r, const char *key) {
  void *record = wg_find_record_str(r->db, KEY_COLUMN, WG_COND_EQUAL, (char *)key, NULL);
  if (!record) fail("a key that was loaded is not found");
  return record;
}

static inline void stamp(struct run *r, uint64_t *last) {
  uint64_t now = now_ns(), took = now - *last;
  r->stamps[r->stamped++] = took > r->stamp_ns ? took - r->stamp_ns : 0;
  *last = now;
}

static void progress(uint64_t at) {
  if (at && at % 512 == 0) say("progress 512");
}

static void put_one(struct run *r, uint64_t at) {
  char *value = content_value(&r->content, r->plan.first + at % r->plan.count);
  void *record = wg_create_record(r->db, COLUMNS);
  if (!record) fail("the database is full: give a larger --db-size");
  wg_int key = wg_encode_str(r->db, r->keys_sorted + (at % r->plan.count) * (KEY_BYTES + 1), NULL);
  wg_int encoded = wg_encode_str(r->db, value, NULL);
  if (key == WG_ILLEGAL || encoded == WG_ILLEGAL)
    fail("the database is full: give a larger --db-size");
  if (wg_set_new_field(r->db, record, KEY_COLUMN, key) < 0) fail("a key could not be set");
  if (wg_set_new_field(r->db, record, VALUE_COLUMN, encoded) < 0) fail("a value could not be set");
}

static wg_int lock(struct run *r) {
  wg_int held;
  /* Zero is a timeout or a full queue of waiters (it has 64 places), not an answer: try again, but
   * leave the processor to those that are in the queue. */
  while (!(held = wg_start_write(r->db))) {
    struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
  }
  return held;
}

/* Append under the database lock, taken for each record; the wait for it is part of the latency. */
static uint64_t pass_put(struct run *r, int stamped) {
  uint64_t start = now_ns(), last = start;
  for (uint64_t i = 0; i < r->plan.ops; i++) {
    wg_int held = lock(r);
    put_one(r, i);
    wg_end_write(r->db, held);
    if (stamped) stamp(r, &last);
    progress(i);
  }
  return now_ns() - start - (stamped ? r->plan.ops * r->stamp_ns : 0);
}

/* As the thesis: the lock is held for a whole sequence, and the wait for it is not counted. */
static uint64_t pass_put_held(struct run *r, int stamped) {
  wg_int held = lock(r);
  uint64_t start = now_ns(), last = start;
  for (uint64_t i = 0; i < r->plan.ops; i++) {
    put_one(r, i);
    if (stamped) stamp(r, &last);
    progress(i);
  }
  uint64_t took = now_ns() - start;
  wg_end_write(r->db, held);
  return took - (stamped ? r->plan.ops * r->stamp_ns : 0);
}

static uint64_t pass_step(struct run *r, int stamped) {
  void *record = wg_get_first_record(r->db);
  for (uint64_t i = 0; i < r->plan.first && record; i++) record = wg_get_next_record(r->db, record);
  uint64_t start = now_ns(), last = start;
  for (uint64_t i = 0; i < r->plan.ops; i++) {
    if (!record) record = wg_get_first_record(r->db);
    if (!record) fail("the database is empty");
    touch(r, value_of(r, record));
    record = wg_get_next_record(r->db, record);
    if (stamped) stamp(r, &last);
  }
  return now_ns() - start;
}

static uint64_t pass_keyed(struct run *r, int stamped, int copies) {
  uint64_t start = now_ns(), last = start;
  for (uint64_t i = 0; i < r->plan.ops; i++) {
    char *value = value_of(r, find(r, r->keys + (i % r->plan.count) * (KEY_BYTES + 1)));
    if (copies) {
      memcpy(r->copy, value, r->plan.record_bytes);
      value = r->copy;
    }
    touch(r, value);
    if (stamped) stamp(r, &last);
  }
  return now_ns() - start;
}

static uint64_t pass_chain(struct run *r, int stamped) {
  uint64_t at = 0, start = now_ns(), last = start;
  for (uint64_t i = 0; i < r->plan.ops; i++) {
    char *value = value_of(r, find(r, r->keys_sorted + at * (KEY_BYTES + 1)));
    touch(r, value);
    at = mix(first_word(value) + i) % r->plan.count;
    if (stamped) stamp(r, &last);
  }
  return now_ns() - start;
}

static uint64_t pass(struct run *r, int stamped) {
  const char *kind = r->plan.kind;
  if (!strcmp(kind, "put")) return pass_put(r, stamped);
  if (!strcmp(kind, "put-held")) return pass_put_held(r, stamped);
  if (!strcmp(kind, "step")) return pass_step(r, stamped);
  if (!strcmp(kind, "view")) return pass_keyed(r, stamped, 0);
  if (!strcmp(kind, "copy")) return pass_keyed(r, stamped, 1);
  if (!strcmp(kind, "chain")) return pass_chain(r, stamped);
  fail("no such kind of access here");
  return 0;
}

static int ascending(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Eleven leading bits are kept: less than a thousandth of error, and few lines. */
static uint64_t rounded(uint64_t ns) {
  unsigned bits = ns ? 64u - (unsigned)__builtin_clzll(ns) : 0;
  unsigned shift = bits > 11 ? bits - 11 : 0;
  return (ns >> shift) << shift;
}

static void tell_histogram(struct run *r) {
  qsort(r->stamps, r->stamped, sizeof *r->stamps, ascending);
  for (uint64_t i = 0; i < r->stamped;) {
    uint64_t value = rounded(r->stamps[i]), count = 0;
    while (i < r->stamped && rounded(r->stamps[i]) == value) i++, count++;
    fprintf(talk, "histogram %" PRIu64 ":%" PRIu64 "\n", value, count);
  }
  fflush(talk);
}

/* What one reading of the clock adds to a stamped operation: the median of many. */
static uint64_t stamp_cost(void) {
  uint64_t took[1001], last = now_ns();
  for (int i = 0; i < 1001; i++) {
    uint64_t now = now_ns();
    took[i] = now - last;
    last = now;
  }
  qsort(took, 1001, sizeof *took, ascending);
  return took[500];
}

static void keys_open(struct run *r) {
  uint64_t n = r->plan.count, state = r->plan.seed + r->plan.node + 1;
  size_t stride = KEY_BYTES + 1;
  r->keys_sorted = malloc(n * stride);
  r->keys = malloc(n * stride);
  if (!r->keys || !r->keys_sorted) fail("out of memory for the keys");
  for (uint64_t i = 0; i < n; i++) key_of(r->keys_sorted + i * stride, r->plan.first + i);
  memcpy(r->keys, r->keys_sorted, n * stride);
  for (uint64_t i = n; i > 1; i--) {
    char swap[KEY_BYTES + 1];
    uint64_t j = mix(state++) % i;
    memcpy(swap, r->keys + (i - 1) * stride, stride);
    memcpy(r->keys + (i - 1) * stride, r->keys + j * stride, stride);
    memcpy(r->keys + j * stride, swap, stride);
  }
}

static int node_main(void) {
  static struct run r;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a node that waits for a lock would not see its pipe close */
  plan_read(&r.plan);
  int writes = !strncmp(r.plan.kind, "put", 3);
  r.db = wg_attach_existing_database(r.plan.address);
  if (!r.db) fail("the database is gone");
  content_open(&r.content, r.plan.seed, r.plan.record_bytes);
  r.content.state += (r.plan.node + 1) << 32;
  r.copy = malloc(r.plan.record_bytes + 1);
  r.stamps = calloc(r.plan.ops * (writes ? r.plan.loops : 1), sizeof *r.stamps);
  if (!r.copy || !r.stamps) fail("out of memory");
  keys_open(&r);
  r.stamp_ns = stamp_cost();
  if (!writes && r.plan.warm_up) pass(&r, 0);
  r.verified = 0;
  say("ready");
  char line[128];
  if (!fgets(line, sizeof line, stdin) || strncmp(line, "go ", 3) != 0) return 1;
  sleep_until(strtoull(line + 3, NULL, 10));
  uint64_t start = now_ns();
  for (uint64_t loop = 0; loop < r.plan.loops; loop++) {
    if (loop && r.plan.interval_us) sleep_until(now_ns() + r.plan.interval_us * 1000);
    uint64_t took = pass(&r, writes);
    say("sequence %" PRIu64 " %" PRIu64, loop, took);
  }
  say("span %" PRIu64 " %" PRIu64, start, now_ns());
  if (!writes) pass(&r, 1);
  tell_histogram(&r);
  say("verified %" PRIu64 " %" PRIu64, r.verified, r.sink);
  say("done");
  wg_detach_database(r.db);
  return 0;
}

/* ---- the keeper ----------------------------------------------------------------------------- */

static void *kept;
static char kept_key[64];

static void keeper_remove(void) {
  if (kept) wg_detach_database(kept), wg_delete_database(kept_key);
}

/* Gives the whole segment its pages now, so that no write pays for the first touch of a page. */
static void populate(const char *key, size_t bytes) {
  int id = shmget((key_t)atol(key), 0, 0);
  char *at = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
  if (at == (char *)-1) fail("the segment that was created cannot be attached");
  for (size_t page = 0; page < bytes; page += 4096) (void)*(volatile char *)(at + page);
  shmdt(at);
}

static void *keeper_create(const char *key, size_t bytes) {
  if (wg_attach_existing_database((char *)key))
    fail("a shared memory segment with this key is there already: remove it with ipcrm");
  void *db = wg_attach_database((char *)key, (wg_int)bytes);
  if (!db) fail("the segment was refused: lower --db-size, or raise kernel.shmmax");
  kept = db;
  snprintf(kept_key, sizeof kept_key, "%s", key);
  atexit(keeper_remove);
  populate(key, bytes);
  return db;
}

static void keeper_load(void *db, uint64_t count, size_t bytes, uint64_t seed) {
  static struct content content;
  char key[KEY_BYTES + 1];
  content_open(&content, seed, bytes);
  for (uint64_t i = 0; i < count; i++) {
    void *record = wg_create_record(db, COLUMNS);
    if (!record) fail("the database is full: give a larger --db-size");
    key_of(key, i);
    wg_int k = wg_encode_str(db, key, NULL);
    wg_int v = wg_encode_str(db, content_value(&content, i), NULL);
    if (k == WG_ILLEGAL || v == WG_ILLEGAL) fail("the database is full: give a larger --db-size");
    wg_set_new_field(db, record, KEY_COLUMN, k);
    wg_set_new_field(db, record, VALUE_COLUMN, v);
    if (i % 1024 == 1023) say("progress 1024");
  }
}

static int keep_main(void) {
  char line[256], key[64] = "";
  void *db = NULL;
  while (fgets(line, sizeof line, stdin)) {
    uint64_t count, bytes, seed;
    if (sscanf(line, "create %63s %" SCNu64, key, &bytes) == 2) {
      db = keeper_create(key, bytes);
      say("ready");
    } else if (db && sscanf(line, "load %" SCNu64 " %" SCNu64 " %" SCNu64, &count, &bytes,
                            &seed) == 3) {
      keeper_load(db, count, bytes, seed);
      say("done");
    } else if (db && !strncmp(line, "index", 5)) {
      if (wg_create_index(db, KEY_COLUMN, WG_INDEX_TYPE_TTREE, NULL, 0)) fail("no index");
      say("done");
    } else {
      fail("not a command");
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  talk = fdopen(dup(1), "w");
  if (!talk || dup2(2, 1) < 0) return 1;
  if (argc == 2 && !strcmp(argv[1], "keep")) return keep_main();
  if (argc == 2 && !strcmp(argv[1], "node")) return node_main();
  fprintf(stderr, "usage: whitedb-node keep|node; `nearstate bench access` starts it\n");
  return 2;
}
