// The Go clients in a long test: go-redis v9, and go-redis v8 with the options of O-RAN's sdlgo.
// `ok NAME` on standard output reports a part that passed. `kill` asks for a SIGKILL of the node; a
// line on standard input reports that it runs again, with the same region.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	sdl "github.com/go-redis/redis/v8"
	"github.com/redis/go-redis/v9"
)

const wait = 30 * time.Second

var (
	host     = os.Getenv("NEARSTATE_HOST")
	address  = host + ":" + os.Getenv("NEARSTATE_PORT")
	sentinel = host + ":" + os.Getenv("NEARSTATE_SENTINEL_PORT")
	lines    = bufio.NewScanner(os.Stdin)
	ctx      = context.Background()
)

func part(name string, run func()) {
	run()
	fmt.Println("ok " + name)
}

func kill() {
	fmt.Println("kill")
	if !lines.Scan() || lines.Text() != "restarted" {
		log.Panicf("the node is not restarted: %q", lines.Text())
	}
}

func good(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func same(got, want interface{}) {
	if !reflect.DeepEqual(got, want) {
		log.Panicf("got %#v, want %#v", got, want)
	}
}

// until waits until a condition holds.
func until(what string, condition func() bool) {
	for end := time.Now().Add(wait); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			log.Panicf("%s: %v", what, wait)
		}
	}
}

func value[T any](got T, err error) T {
	good(err)
	return got
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "sdlgo" {
		sdlgo()
	} else {
		goRedis()
	}
}

func goRedis() {
	db := redis.NewClient(&redis.Options{Addr: address})
	good(db.FlushAll(ctx).Err())
	part("strings", func() {
		good(db.Set(ctx, "a", "\x00\xff\r\n", 0).Err())
		same(value(db.Get(ctx, "a").Result()), "\x00\xff\r\n")
		same(db.Get(ctx, "absent").Err(), redis.Nil)
		same(value(db.IncrBy(ctx, "n", 41).Result()), int64(41))
		same(value(db.MGet(ctx, "n", "absent").Result()), []interface{}{"41", nil})
	})
	part("hashes", func() {
		same(value(db.HSet(ctx, "h", "f", "1", "g", "2").Result()), int64(2))
		same(value(db.HGetAll(ctx, "h").Result()), map[string]string{"f": "1", "g": "2"})
		same(value(db.HIncrBy(ctx, "h", "f", 2).Result()), int64(3))
	})
	part("sets", func() {
		same(value(db.SAdd(ctx, "s", "b", "a").Result()), int64(2))
		same(value(db.SMembersMap(ctx, "s").Result()), map[string]struct{}{"a": {}, "b": {}})
		same(strings.HasPrefix(db.Get(ctx, "s").Err().Error(), "WRONGTYPE"), true)
	})
	part("transactions", func() {
		var read *redis.StringCmd
		value(db.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, "t", 1, 0)
			pipe.Incr(ctx, "t")
			read = pipe.Get(ctx, "t")
			return nil
		}))
		same(read.Val(), "2")
		err := db.Watch(ctx, func(tx *redis.Tx) error {
			good(db.Set(ctx, "t", "changed", 0).Err())
			_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, "t", "lost", 0)
				return nil
			})
			return err
		}, "t")
		same(err, redis.TxFailedErr)
	})
	part("pipelines", func() {
		replies := value(db.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := 0; i < 10_000; i++ {
				pipe.Set(ctx, "{p},"+strconv.Itoa(i), i, 0)
			}
			return nil
		}))
		same(len(replies), 10_000)
	})
	part("scan", func() {
		seen := map[string]bool{}
		keys := db.Scan(ctx, 0, "{p},*", 500).Iterator()
		for keys.Next(ctx) {
			seen[keys.Val()] = true
		}
		good(keys.Err())
		same(len(seen), 10_000)
	})
	part("expiry", func() {
		good(db.Set(ctx, "e", "1", 50*time.Millisecond).Err())
		left := value(db.PTTL(ctx, "e").Result())
		same(left > 0 && left <= 50*time.Millisecond, true)
		until("the key expires", func() bool { return db.Get(ctx, "e").Err() == redis.Nil })
	})
	sub := db.Subscribe(ctx, "c")
	value(sub.Receive(ctx))
	messages := sub.Channel()
	part("pubsub", func() {
		same(value(db.Publish(ctx, "c", "one").Result()), int64(1))
		same((<-messages).Payload, "one")
		good(sub.PSubscribe(ctx, "p*"))
		until("a subscription", func() bool { return db.PubSubNumPat(ctx).Val() == 1 })
		same(value(db.Publish(ctx, "px", "two").Result()), int64(1))
		same((<-messages).Payload, "two")
	})
	part("sentinel", func() {
		found := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "mymaster", SentinelAddrs: []string{sentinel},
		})
		same(value(found.Get(ctx, "n").Result()), "41")
		good(found.Close())
	})
	part("reconnection", func() {
		good(db.Set(ctx, "kept", "acknowledged", 0).Err())
		kill()
		until("a connection", func() bool { return db.Get(ctx, "kept").Val() == "acknowledged" })
		// go-redis subscribes again by itself.
		until("a subscription", func() bool { return db.Publish(ctx, "c", "after").Val() == 1 })
		same((<-messages).Payload, "after")
	})
}

func sdlgo() {
	for _, name := range []string{"direct", "sentinel"} {
		options := &sdl.Options{Addr: address, PoolSize: 20, MaxRetries: 2}
		db := sdl.NewClient(options)
		if name == "sentinel" {
			db = sdl.NewFailoverClient(&sdl.FailoverOptions{
				MasterName: "dbaasmaster", SentinelAddrs: []string{sentinel}, PoolSize: 20, MaxRetries: 2,
			})
		}
		good(db.FlushAll(ctx).Err())
		if name == "direct" {
			sdlgoParts(db)
			part("reconnection", func() {
				good(db.MSet(ctx, "{ns},kept", "acknowledged").Err())
				kill()
				until("a connection", func() bool {
					values, err := db.MGet(ctx, "{ns},kept").Result()
					return err == nil && values[0] == "acknowledged"
				})
			})
		} else {
			part("sentinel", func() {
				good(db.MSet(ctx, "{ns},a", "1").Err())
				same(value(db.MGet(ctx, "{ns},a").Result()), []interface{}{"1"})
			})
		}
		good(db.Close())
	}
}

func sdlgoParts(db *sdl.Client) {
	part("strings", func() {
		good(db.MSet(ctx, "{ns},a", "data", "{ns},b", []byte{0, 255}).Err())
		same(value(db.MGet(ctx, "{ns},a", "{ns},absent").Result()), []interface{}{"data", nil})
		same(value(db.Do(ctx, "SETIE", "{ns},a", "new", "data").Result()), "OK")
	})
	part("sets", func() {
		good(db.SAdd(ctx, "{ns},g", "m1", "m2").Err())
		same(value(db.SCard(ctx, "{ns},g").Result()), int64(2))
	})
	part("scan", func() {
		same(len(value(db.Keys(ctx, "{ns},*").Result())), 3)
	})
	part("expiry", func() {
		same(value(db.SetNX(ctx, "{ns},lock", "token", 50*time.Millisecond).Result()), true)
		until("the lock expires", func() bool {
			return db.SetNX(ctx, "{ns},lock", "other", time.Second).Val()
		})
	})
	part("pubsub", func() {
		sub := db.Subscribe(ctx, "{ns},c")
		value(sub.Receive(ctx))
		same(value(db.Do(ctx, "MSETMPUB", 1, 1, "{ns},a", "1", "{ns},c", "event").Result()), "OK")
		message := value(sub.ReceiveMessage(ctx))
		same([]string{message.Channel, message.Payload}, []string{"{ns},c", "event"})
		good(sub.Close())
	})
}
