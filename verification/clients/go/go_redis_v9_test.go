// go-redis v9 against the node: both versions of the protocol, pipelines, transactions with WATCH,
// subscriptions, iterations, and the Sentinel client.
package clients

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// every runs a test for each version of the protocol and each way to find the node.
func every(t *testing.T, test func(t *testing.T, ctx context.Context, db *redis.Client)) {
	for _, protocol := range []int{2, 3} {
		clients := map[string]*redis.Client{
			"direct": redis.NewClient(&redis.Options{Addr: address(t), Protocol: protocol}),
			"failover": redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: "any", SentinelAddrs: []string{address(t)}, Protocol: protocol,
			}),
		}
		for name, db := range clients {
			t.Run(fmt.Sprintf("resp%d/%s", protocol, name), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 2*wait)
				defer cancel()
				defer db.Close()
				good(t, db.FlushAll(ctx).Err())
				test(t, ctx, db)
			})
		}
	}
}

func TestV9Strings(t *testing.T) {
	every(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		good(t, db.Set(ctx, "a", "\x00\xff", 0).Err())
		value, err := db.Get(ctx, "a").Result()
		good(t, err)
		same(t, value, "\x00\xff")
		same(t, db.Get(ctx, "absent").Err(), redis.Nil)
		number, err := db.IncrBy(ctx, "n", 42).Result()
		good(t, err)
		same(t, number, int64(42))
		fraction, err := db.IncrByFloat(ctx, "n", 0.5).Result()
		good(t, err)
		same(t, fraction, 42.5)
		before, err := db.SetArgs(ctx, "a", "new", redis.SetArgs{Get: true, TTL: 100 * time.Second}).Result()
		good(t, err)
		same(t, before, "\x00\xff")
		left, err := db.TTL(ctx, "a").Result()
		good(t, err)
		same(t, left > 0 && left <= 100*time.Second, true)
		large := strings.Repeat("x", 4<<20)
		good(t, db.Set(ctx, "large", large, 0).Err())
		value, err = db.Get(ctx, "large").Result()
		good(t, err)
		same(t, value == large, true)
	})
}

func TestV9HashesAndSets(t *testing.T) {
	every(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		count, err := db.HSet(ctx, "h", "f", "1", "g", "2").Result()
		good(t, err)
		same(t, count, int64(2))
		all, err := db.HGetAll(ctx, "h").Result()
		good(t, err)
		same(t, all, map[string]string{"f": "1", "g": "2"})
		pairs, err := db.HRandFieldWithValues(ctx, "h", 5).Result()
		good(t, err)
		same(t, len(pairs), 2)
		good(t, db.SAdd(ctx, "s", "a", "b").Err())
		good(t, db.SAdd(ctx, "t", "b", "c").Err())
		both, err := db.SInter(ctx, "s", "t").Result()
		good(t, err)
		same(t, both, []string{"b"})
		are, err := db.SMIsMember(ctx, "s", "a", "c").Result()
		good(t, err)
		same(t, are, []bool{true, false})
		if err := db.Get(ctx, "s").Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE ") {
			t.Errorf("GET of a set: %v", err)
		}
	})
}

func TestV9Walks(t *testing.T) {
	every(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		pipe := db.Pipeline()
		for number := 0; number < 2000; number++ {
			pipe.Set(ctx, fmt.Sprintf("{ns},%d", number), number, 0)
		}
		answers, err := pipe.Exec(ctx)
		good(t, err)
		same(t, len(answers), 2000)
		seen := map[string]bool{}
		for walk := db.Scan(ctx, 0, "{ns},*", 10).Iterator(); walk.Next(ctx); {
			seen[walk.Val()] = true
		}
		same(t, len(seen), 2000)
		size, err := db.DBSize(ctx).Result()
		good(t, err)
		same(t, size, int64(2000))
	})
}

func TestV9Transactions(t *testing.T) {
	every(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		var number *redis.IntCmd
		_, err := db.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, "a", 1, 0)
			number = pipe.Incr(ctx, "a")
			return nil
		})
		good(t, err)
		same(t, number.Val(), int64(2))

		err = db.Watch(ctx, func(tx *redis.Tx) error {
			good(t, db.Set(ctx, "a", "changed", 0).Err())
			_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				return pipe.Set(ctx, "a", "lost", 0).Err()
			})
			return err
		}, "a")
		same(t, errors.Is(err, redis.TxFailedErr), true)
		same(t, db.Get(ctx, "a").Val(), "changed")

		good(t, db.Set(ctx, "sum", 0, 0).Err())
		var group sync.WaitGroup
		for worker := 0; worker < 4; worker++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for done := 0; done < 25; {
					err := db.Watch(ctx, func(tx *redis.Tx) error {
						value, err := tx.Get(ctx, "sum").Int()
						if err != nil {
							return err
						}
						_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
							return pipe.Set(ctx, "sum", value+1, 0).Err()
						})
						return err
					}, "sum")
					if err == nil {
						done++
					} else if !errors.Is(err, redis.TxFailedErr) {
						t.Error(err)
						return
					}
				}
			}()
		}
		group.Wait()
		same(t, db.Get(ctx, "sum").Val(), "100")
	})
}

func TestV9Subscriptions(t *testing.T) {
	every(t, func(t *testing.T, ctx context.Context, db *redis.Client) {
		sub := db.Subscribe(ctx, "c1", "c2")
		defer sub.Close()
		good(t, sub.PSubscribe(ctx, "p*"))
		for subscriptions := 0; subscriptions < 3; subscriptions++ {
			message, err := sub.ReceiveTimeout(ctx, wait)
			good(t, err)
			same(t, message.(*redis.Subscription).Count, subscriptions+1)
		}
		channels, err := db.PubSubChannels(ctx, "c*").Result()
		good(t, err)
		sort.Strings(channels)
		same(t, channels, []string{"c1", "c2"})
		for _, channel := range []string{"c1", "pattern", "c2"} {
			heard, err := db.Publish(ctx, channel, "to "+channel).Result()
			good(t, err)
			same(t, heard, int64(1))
			message, err := sub.ReceiveTimeout(ctx, wait)
			good(t, err)
			same(t, message.(*redis.Message).Payload, "to "+channel)
		}
		good(t, sub.Ping(ctx, "there"))
		pong, err := sub.ReceiveTimeout(ctx, wait)
		good(t, err)
		same(t, pong.(*redis.Pong).Payload, "there")
	})
}

func TestV9SeesTheMastersAddress(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: address(t)})
	defer sentinel.Close()
	place, err := sentinel.GetMasterAddrByName(ctx, "any").Result()
	good(t, err)
	same(t, strings.Join(place, ":"), address(t))
}
