// The requests of O-RAN's sdlgo, sent through the client that it uses (go-redis v8.11.4) with the
// same options. The module proxy does not have sdlgo itself, so the tests make its calls one by one;
// the table of calls of the SDL clients lists the requests of each.
package clients

import (
	"context"
	"os"
	"reflect"
	"sort"
	"testing"
	"time"

	"github.com/go-redis/redis/v8"
)

// Longer than anything takes on a busy machine. Waits end as soon as their condition holds.
const wait = 30 * time.Second

func address(t testing.TB) string {
	host, port := os.Getenv("NEARSTATE_HOST"), os.Getenv("NEARSTATE_PORT")
	if host == "" || port == "" {
		t.Fatal("NEARSTATE_HOST and NEARSTATE_PORT say where the node is: cargo test -p nearstate-clients sets them")
	}
	return host + ":" + port
}

// The SHA-1 of sdlgo's script that refreshes a lock.
const refresh = "a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf"

type backend struct {
	name string
	new  func(t *testing.T) *redis.Client
}

var backends = []backend{
	{"standalone", func(t *testing.T) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: address(t), PoolSize: 20, MaxRetries: 2})
	}},
	{"sentinel", func(t *testing.T) *redis.Client {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "dbaasmaster", SentinelAddrs: []string{address(t)}, PoolSize: 20, MaxRetries: 2,
		})
	}},
}

// each runs a test on an empty node for every way to find the node.
func each(t *testing.T, test func(t *testing.T, ctx context.Context, db *redis.Client)) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*wait)
			defer cancel()
			db := backend.new(t)
			defer db.Close()
			if err := db.FlushAll(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			test(t, ctx, db)
		})
	}
}

func same(t *testing.T, got, want interface{}) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v", got, want)
	}
}

func good(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestItFindsTheModulesCommands(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		commands, err := db.Command(ctx).Result()
		good(t, err)
		for _, name := range []string{"setie", "delie", "setiepub", "setnxpub", "msetmpub", "delmpub"} {
			if commands[name] == nil {
				t.Errorf("COMMAND does not list %s: sdlgo would not use any of them", name)
			}
		}
	})
}

func TestSetGetRemove(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		good(t, db.MSet(ctx, "{ns},a", "data", "{ns},b", []byte{0, 255}, "{ns},c", 5).Err())
		values, err := db.MGet(ctx, "{ns},a", "{ns},b", "{ns},c", "{ns},absent").Result()
		good(t, err)
		same(t, values, []interface{}{"data", "\x00\xff", "5", nil})
		keys, err := db.Keys(ctx, "{ns},*").Result()
		good(t, err)
		sort.Strings(keys)
		same(t, keys, []string{"{ns},a", "{ns},b", "{ns},c"})
		count, err := db.Del(ctx, keys...).Result()
		good(t, err)
		same(t, count, int64(3))
		keys, err = db.Keys(ctx, "{ns},*").Result()
		good(t, err)
		same(t, keys, []string{})
	})
}

func TestConditions(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		isSet, err := db.SetNX(ctx, "{ns},a", "1", 0).Result()
		good(t, err)
		same(t, isSet, true)
		isSet, err = db.SetNX(ctx, "{ns},a", "2", 0).Result()
		good(t, err)
		same(t, isSet, false)
		_, err = db.Do(ctx, "SETIE", "{ns},a", "new", "other").Result()
		same(t, err, redis.Nil)
		answer, err := db.Do(ctx, "SETIE", "{ns},a", "new", "1").Result()
		good(t, err)
		same(t, answer, "OK")
		answer, err = db.Do(ctx, "DELIE", "{ns},a", "1").Result()
		good(t, err)
		same(t, answer, int64(0))
		answer, err = db.Do(ctx, "DELIE", "{ns},a", "new").Result()
		good(t, err)
		same(t, answer, int64(1))
	})
}

func TestGroups(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		good(t, db.SAdd(ctx, "{ns},g", "m1", "m2", 3).Err())
		members, err := db.SMembers(ctx, "{ns},g").Result()
		good(t, err)
		sort.Strings(members)
		same(t, members, []string{"3", "m1", "m2"})
		isMember, err := db.SIsMember(ctx, "{ns},g", "m1").Result()
		good(t, err)
		same(t, isMember, true)
		good(t, db.SRem(ctx, "{ns},g", "m1", "absent").Err())
		size, err := db.SCard(ctx, "{ns},g").Result()
		good(t, err)
		same(t, size, int64(2))
		good(t, db.Del(ctx, "{ns},g").Err())
		members, err = db.SMembers(ctx, "{ns},g").Result()
		good(t, err)
		same(t, members, []string{})
	})
}

func TestLocks(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		const key, token = "{ns},lock", "abcdefghijklmnopqrstuv"
		// EX for whole seconds, PX otherwise.
		for _, end := range []time.Duration{100 * time.Second, 100500 * time.Millisecond} {
			isLocked, err := db.SetNX(ctx, key, token, end).Result()
			good(t, err)
			same(t, isLocked, true)
			isLocked, err = db.SetNX(ctx, key, "another", end).Result()
			good(t, err)
			same(t, isLocked, false)
			left, err := db.PTTL(ctx, key).Result()
			good(t, err)
			if left <= 0 || left > end {
				t.Errorf("%v left of %v", left, end)
			}
			refreshed, err := db.EvalSha(ctx, refresh, []string{key}, token, "200000").Result()
			good(t, err)
			same(t, refreshed, int64(1))
			if left, err = db.PTTL(ctx, key).Result(); err != nil || left <= end {
				t.Errorf("%v left of 200 s: %v", left, err)
			}
			refreshed, err = db.EvalSha(ctx, refresh, []string{key}, "another", "1").Result()
			good(t, err)
			same(t, refreshed, int64(0))
			released, err := db.Do(ctx, "DELIE", key, token).Result()
			good(t, err)
			same(t, released, int64(1))
		}
		left, err := db.PTTL(ctx, key).Result()
		good(t, err)
		same(t, left, time.Duration(-2))
		_, err = db.EvalSha(ctx, "ffffffffffffffffffffffffffffffffffffffff", []string{key}).Result()
		if err == nil || err.Error()[:9] != "NOSCRIPT " {
			t.Errorf("an unknown script: %v", err)
		}
	})
}

// listener subscribes as sdlgo does: first to the channel with the empty name, then to the others.
func listener(t *testing.T, ctx context.Context, db *redis.Client, channel string) *redis.PubSub {
	t.Helper()
	sub := db.Subscribe(ctx, "")
	good(t, sub.Subscribe(ctx, channel))
	for {
		counts, err := db.PubSubNumSub(ctx, channel).Result()
		good(t, err)
		if counts[channel] > 0 {
			return sub
		}
	}
}

func TestNotifications(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		const channel = "{ns},ch"
		sub := listener(t, ctx, db, channel)
		defer sub.Close()
		messages := sub.Channel()
		heard := func(want string) {
			t.Helper()
			select {
			case message := <-messages:
				same(t, []string{message.Channel, message.Payload}, []string{channel, want})
			case <-time.After(wait):
				t.Fatalf("no message %q", want)
			}
		}
		do := func(want interface{}, words ...interface{}) {
			t.Helper()
			answer, err := db.Do(ctx, words...).Result()
			if err != redis.Nil {
				good(t, err)
			}
			same(t, answer, want)
		}
		do("OK", "MSETMPUB", 2, 1, "{ns},a", "1", "{ns},b", "2", channel, "e1___e2")
		heard("e1___e2")
		do("OK", "SETIEMPUB", "{ns},a", "new", "1", channel, "if")
		heard("if")
		do(nil, "SETIEMPUB", "{ns},a", "new", "1", channel, "not told")
		do("OK", "SETNXMPUB", "{ns},n", "1", channel, "nx")
		heard("nx")
		do(nil, "SETNXMPUB", "{ns},n", "1", channel, "not told")
		do(int64(0), "DELIEMPUB", "{ns},n", "2", channel, "not told")
		do(int64(1), "DELIEMPUB", "{ns},n", "1", channel, "gone")
		heard("gone")
		do(int64(0), "DELMPUB", 1, 1, "{ns},absent", channel, "not told")
		do(int64(2), "DELMPUB", 2, 1, "{ns},a", "{ns},b", channel, "removed")
		heard("removed")
		good(t, sub.Unsubscribe(ctx, channel))
		good(t, sub.Ping(ctx, ""))
	})
}

func TestSentinelCommands(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: address(t)})
	defer sentinel.Close()
	master, err := sentinel.Master(ctx, "dbaasmaster").Result()
	good(t, err)
	same(t, master["ip"]+":"+master["port"], address(t))
	same(t, []string{master["flags"], master["role-reported"]}, []string{"master", "master"})
	place, err := sentinel.GetMasterAddrByName(ctx, "dbaasmaster").Result()
	good(t, err)
	same(t, place[0]+":"+place[1], address(t))
	sentinels, err := sentinel.Sentinels(ctx, "dbaasmaster").Result()
	good(t, err)
	same(t, len(sentinels), 0)
	slaves, err := sentinel.Slaves(ctx, "dbaasmaster").Result()
	good(t, err)
	same(t, len(slaves), 0)
}

func TestInfo(t *testing.T) {
	each(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		info, err := db.Info(ctx, "all").Result()
		good(t, err)
		for _, field := range []string{"role:master\r\n", "connected_clients:", "used_memory:", "uptime_in_days:"} {
			if !contains(info, field) {
				t.Errorf("INFO all has no %q", field)
			}
		}
	})
}
