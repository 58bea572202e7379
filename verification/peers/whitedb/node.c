/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * WhiteDB as a target of `nearstate bench run`.
 *
 * This program is free software: you can redistribute it and/or modify it under the terms of the
 * GNU General Public License as published by the Free Software Foundation, either version 3 of the
 * License, or (at your option) any later version. It is distributed in the hope that it will be
 * useful, but WITHOUT ANY WARRANTY; see COPYING.md in this folder.
 *
 * It links WhiteDB (GPL-3.0), so it is a program of its own and shares no code with the rest of the
 * repository. It is used in two roles:
 *
 *   whitedb-node keep KEY BYTES          owns the database KEY; prints `ready`, and removes the
 *                                        database when its standard input ends
 *   whitedb-node serve KEY record|block  one client: runs requests from its standard input
 *
 * All numbers are little-endian. A request is a letter, a 32-bit count, and its operands:
 *
 *   V n         n times a 32-bit size and a value: the values that blocks of puts use in turn
 *   v c h p n   n keys of 20 bytes: a block of views, copies, dependent views or puts
 *   w 0         a walk over all records
 *   r size key               reads one record
 *   P size key, size value   puts one record
 *
 * A reply is a 64-bit number: records met or written, or the size of a value, which follows, plus
 * one; 2^64 - 1 and a line of text for an error.
 *
 * `record` takes the lock of the database for each put, `block` for a block of puts, as the
 * thesis did.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <time.h>
#include <unistd.h>
#include <whitedb/dbapi.h>
#include <whitedb/indexapi.h>

enum { KEY_BYTES = 20, KEY_COLUMN = 0, VALUE_COLUMN = 1, COLUMNS = 2, TAIL_BYTES = 8 };

static FILE *replies; /* WhiteDB prints to stdout, which therefore goes to stderr */
static void *db;
static int is_lock_held_for_blocks;

static void reply(uint64_t number) {
  uint64_t bytes = htole64(number);
  fwrite(&bytes, sizeof bytes, 1, replies);
}

static void fail(const char *what) {
  reply(UINT64_MAX);
  fprintf(replies, "whitedb: %s\n", what);
  fflush(replies);
  exit(1);
}

static void take(void *to, size_t bytes) {
  if (fread(to, 1, bytes, stdin) != bytes) exit(0);
}

static uint32_t take_u32(void) {
  uint32_t number;
  take(&number, sizeof number);
  return le32toh(number);
}

/* ---- single records ------------------------------------------------------------------------- */

static wg_int lock(void) {
  wg_int held;
  /* Zero is a time-out or a full queue of waiters (it has 64 places): try again, and leave the
   * processor to those in the queue. */
  while (!(held = wg_start_write(db))) {
    struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
  }
  return held;
}

static int has_index(void) {
  return wg_column_to_index_id(db, KEY_COLUMN, WG_INDEX_TYPE_TTREE, NULL, 0) >= 0;
}

/* The index is built when records are first asked for by key, so that an insert into an empty
 * database only appends, as in the thesis. Another process may be building it: only under the lock
 * is an existing index complete. */
static void need_index(void) {
  static int is_known;
  if (is_known) return;
  wg_int held = lock();
  if (!has_index() && wg_create_index(db, KEY_COLUMN, WG_INDEX_TYPE_TTREE, NULL, 0))
    fail("the index could not be created");
  wg_end_write(db, held);
  is_known = 1;
}

static void *find(const char *key) {
  return wg_find_record_str(db, KEY_COLUMN, WG_COND_EQUAL, (char *)key, NULL);
}

/* WhiteDB stores equal values once. A tail that no other value has keeps each write a write. */
static wg_int encode(char *value, size_t bytes) {
  static uint64_t count;
  uint64_t tail = (uint64_t)getpid() << 40 | ++count;
  memcpy(value + bytes, &tail, TAIL_BYTES);
  wg_int encoded = wg_encode_blob(db, value, NULL, (wg_int)(bytes + TAIL_BYTES));
  if (encoded == WG_ILLEGAL) fail("the database is full");
  return encoded;
}

/* `value` has room for the tail. The caller holds the lock. */
static void put(const char *key, char *value, size_t bytes) {
  void *record = has_index() ? find(key) : NULL;
  wg_int encoded = encode(value, bytes);
  if (record) {
    if (wg_set_field(db, record, VALUE_COLUMN, encoded) < 0) fail("a value could not be set");
    return;
  }
  record = wg_create_record(db, COLUMNS);
  wg_int name = record ? wg_encode_str(db, (char *)key, NULL) : WG_ILLEGAL;
  if (name == WG_ILLEGAL) fail("the database is full");
  if (wg_set_new_field(db, record, KEY_COLUMN, name) < 0) fail("a key could not be set");
  if (wg_set_new_field(db, record, VALUE_COLUMN, encoded) < 0) fail("a value could not be set");
}

static char *value_of(void *record, size_t *bytes) {
  wg_int encoded = wg_get_field(db, record, VALUE_COLUMN);
  char *value = wg_decode_blob(db, encoded);
  wg_int all = wg_decode_blob_len(db, encoded);
  if (!value || all < TAIL_BYTES) fail("a record has no value");
  *bytes = (size_t)all - TAIL_BYTES;
  return value;
}

/* ---- blocks --------------------------------------------------------------------------------- */

static char **values;
static uint32_t *value_bytes;
static uint32_t values_count;

static char *take_bytes(uint32_t *bytes) {
  *bytes = take_u32();
  char *to = malloc((size_t)*bytes + TAIL_BYTES + 1);
  if (!to) fail("out of memory");
  take(to, *bytes);
  to[*bytes] = 0;
  return to;
}

static void take_values(uint32_t count) {
  for (uint32_t at = 0; at < values_count; at++) free(values[at]);
  values_count = count;
  values = realloc(values, count * sizeof *values);
  value_bytes = realloc(value_bytes, count * sizeof *value_bytes);
  if (!values || !value_bytes) fail("out of memory");
  for (uint32_t at = 0; at < count; at++) values[at] = take_bytes(&value_bytes[at]);
}

static uint64_t read_block(char kind, char (*keys)[KEY_BYTES + 1], uint32_t count) {
  static char *copy;
  static size_t copy_bytes;
  static volatile uint64_t zero, sink;
  uint64_t met = 0, seen = 0;
  for (uint32_t at = 0; at < count; at++) {
    /* Adds nothing; the processor has to wait for the value to know it. */
    void *record = find(keys[at + (kind == 'h' ? seen * zero : 0)]);
    if (!record) continue;
    size_t bytes;
    char *value = value_of(record, &bytes);
    if (kind == 'c') {
      if (copy_bytes < bytes) copy = realloc(copy, copy_bytes = bytes);
      if (!copy && bytes) fail("out of memory");
      value = memcpy(copy, value, bytes);
    }
    seen = bytes ? (uint64_t)(unsigned char)value[0] + (unsigned char)value[bytes - 1] : 0;
    sink += seen;
    met++;
  }
  return met;
}

static uint64_t put_block(char (*keys)[KEY_BYTES + 1], uint32_t count) {
  wg_int held = is_lock_held_for_blocks ? lock() : 0;
  if (!values_count) fail("a block of puts without values");
  for (uint32_t at = 0; at < count; at++) {
    wg_int held_once = is_lock_held_for_blocks ? 0 : lock();
    put(keys[at], values[at % values_count], value_bytes[at % values_count]);
    if (held_once) wg_end_write(db, held_once);
  }
  if (held) wg_end_write(db, held);
  return count;
}

static void block(char kind, uint32_t count) {
  static char (*keys)[KEY_BYTES + 1];
  static uint32_t room;
  if (room < count) keys = realloc(keys, (size_t)(room = count) * sizeof *keys);
  if (!keys) fail("out of memory");
  for (uint32_t at = 0; at < count; at++) {
    take(keys[at], KEY_BYTES);
    keys[at][KEY_BYTES] = 0;
  }
  if (kind != 'p') need_index();
  reply(kind == 'p' ? put_block(keys, count) : read_block(kind, keys, count));
}

static void walk(void) {
  uint64_t met = 0;
  void *record = wg_get_first_record(db);
  for (; record; met++) record = wg_get_next_record(db, record);
  reply(met);
}

/* ---- requests ------------------------------------------------------------------------------- */

static void read_one(uint32_t bytes) {
  char *key = malloc((size_t)bytes + 1);
  if (!key) fail("out of memory");
  take(key, bytes);
  key[bytes] = 0;
  need_index();
  void *record = find(key);
  size_t length = 0;
  char *value = record ? value_of(record, &length) : NULL;
  reply(record ? length + 1 : 0);
  if (value) fwrite(value, 1, length, replies);
  free(key);
}

static void put_record(uint32_t bytes) {
  char *key = malloc((size_t)bytes + 1);
  if (!key) fail("out of memory");
  take(key, bytes);
  key[bytes] = 0;
  uint32_t length;
  char *value = take_bytes(&length);
  wg_int held = lock();
  put(key, value, length);
  wg_end_write(db, held);
  reply(1);
  free(key);
  free(value);
}

static int serve(const char *key, const char *held) {
  /* A process that waits for a lock does not see its pipe close. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  is_lock_held_for_blocks = !strcmp(held, "block");
  db = wg_attach_existing_database((char *)key);
  if (!db) fail("the database is gone");
  for (int kind; (kind = getchar()) != EOF; fflush(replies)) {
    uint32_t count = take_u32();
    if (kind == 'V') take_values(count);
    else if (kind == 'w') walk();
    else if (kind == 'r') read_one(count);
    else if (kind == 'P') put_record(count);
    else if (strchr("vchp", kind)) block((char)kind, count);
    else fail("unknown request");
  }
  wg_detach_database(db);
  return 0;
}

/* Gives the whole segment its pages now, so that no write pays for the first touch of a page. */
static void populate(const char *key, size_t bytes) {
  int id = shmget((key_t)atol(key), 0, 0);
  char *at = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
  if (at == (char *)-1) fail("the segment that was created cannot be attached");
  for (size_t page = 0; page < bytes; page += 4096) (void)*(volatile char *)(at + page);
  shmdt(at);
}

static int keep(char *key, const char *bytes) {
  size_t size = strtoull(bytes, NULL, 10);
  if (wg_attach_existing_database(key))
    fail("a shared memory segment with this key exists: remove it with ipcrm");
  void *kept = wg_attach_database(key, (wg_int)size);
  if (!kept) fail("the segment was refused: raise kernel.shmmax, or use fewer records");
  populate(key, size);
  reply(1);
  fflush(replies);
  while (getchar() != EOF) {
  }
  wg_detach_database(kept);
  return wg_delete_database(key);
}

int main(int argc, char **argv) {
  replies = fdopen(dup(1), "w");
  if (!replies || dup2(2, 1) < 0) return 1;
  if (argc == 4 && !strcmp(argv[1], "keep")) return keep(argv[2], argv[3]);
  if (argc == 4 && !strcmp(argv[1], "serve")) return serve(argv[2], argv[3]);
  fprintf(stderr, "usage: whitedb-node keep|serve ..; `nearstate bench run` starts it\n");
  return 2;
}
