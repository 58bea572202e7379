import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TrackingArgs;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.support.caching.CacheAccessor;
import io.lettuce.core.support.caching.ClientSideCaching;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Lettuce against the node. */
final class LettuceSoak {
    private LettuceSoak() {}

    public static void main(String[] args) throws Exception {
        RedisURI uri = RedisURI.create(Soak.HOST, Soak.PORT);
        RedisClient client = RedisClient.create(uri);
        var connection = client.connect();
        var redis = connection.sync();
        redis.flushall();
        Soak.part("strings", () -> {
            byte[] value = {0, -1, 13, 10};
            try (var bytes = client.connect(ByteArrayCodec.INSTANCE)) {
                Soak.same(bytes.sync().set("a".getBytes(), value), "OK");
                byte[] read = bytes.sync().get("a".getBytes());
                Soak.same(java.util.Arrays.equals(read, value), true);
            }
            Soak.same(redis.get("absent"), null);
            Soak.same(redis.incrby("n", 41), 41L);
            Soak.same(redis.mget("n", "absent").get(1).hasValue(), false);
        });
        Soak.part("hashes", () -> {
            Soak.same(redis.hset("h", Map.of("f", "1", "g", "2")), 2L);
            Soak.same(redis.hgetall("h"), Map.of("f", "1", "g", "2"));
            Soak.same(redis.hincrby("h", "f", 2), 3L);
        });
        Soak.part("sets", () -> {
            Soak.same(redis.sadd("s", "b", "a"), 2L);
            Soak.same(redis.smembers("s"), Set.of("a", "b"));
            try {
                redis.get("s");
                throw new AssertionError("a set is not a string");
            } catch (RedisCommandExecutionException error) {
                Soak.same(error.getMessage().startsWith("WRONGTYPE"), true);
            }
        });
        Soak.part("transactions", () -> {
            redis.multi();
            redis.set("t", "1");
            redis.incr("t");
            redis.get("t");
            var result = redis.exec();
            Soak.same(result.stream().toList(), List.of("OK", 2L, "2"));
            try (var other = client.connect()) {
                redis.watch("t");
                other.sync().set("t", "changed");
                redis.multi();
                redis.set("t", "lost");
                Soak.same(redis.exec().wasDiscarded(), true);
            }
        });
        Soak.part("pipelines", () -> {
            var replies = new ArrayList<java.util.concurrent.Future<String>>();
            for (int i = 0; i < 10_000; i++) {
                replies.add(connection.async().set("{p}," + i, "" + i));
            }
            for (var reply : replies) {
                Soak.same(reply.get(30, TimeUnit.SECONDS), "OK");
            }
        });
        Soak.part("scan", () -> {
            Set<String> seen = new HashSet<>();
            ScanIterator.scan(redis, ScanArgs.Builder.matches("{p},*").limit(500))
                    .forEachRemaining(seen::add);
            Soak.same(seen.size(), 10_000);
        });
        Soak.part("expiry", () -> {
            redis.set("e", "1", SetArgs.Builder.px(50));
            long left = redis.pttl("e");
            Soak.same(left > 0 && left <= 50, true);
            Soak.until("the key expires", () -> redis.get("e") == null);
        });
        var messages = new LinkedBlockingQueue<String>();
        var subscriber = client.connectPubSub();
        Soak.part("pubsub", () -> {
            subscriber.addListener(new RedisPubSubAdapter<String, String>() {
                @Override
                public void message(String channel, String text) {
                    messages.add(channel + " " + text);
                }

                @Override
                public void message(String pattern, String channel, String text) {
                    messages.add(pattern + " " + channel + " " + text);
                }
            });
            subscriber.sync().subscribe("c");
            subscriber.sync().psubscribe("p*");
            Soak.same(redis.publish("c", "one"), 1L);
            Soak.same(redis.publish("px", "two"), 1L);
            Soak.same(messages.poll(30, TimeUnit.SECONDS), "c one");
            Soak.same(messages.poll(30, TimeUnit.SECONDS), "p* px two");
        });
        Soak.part("caching", () -> {
            Map<String, String> local = new ConcurrentHashMap<>();
            try (var tracking = client.connect()) {
                var cache = ClientSideCaching.enable(
                        CacheAccessor.forMap(local), tracking, TrackingArgs.Builder.enabled());
                redis.set("k", "1");
                Soak.same(cache.get("k"), "1");
                long before = Soak.requests(redis.info());
                for (int i = 0; i < 1000; i++) {
                    Soak.same(cache.get("k"), "1");
                }
                Soak.same(Soak.requests(redis.info()) - before < 100, true);
                redis.set("k", "2");
                Soak.until("the cache is invalidated", () -> "2".equals(cache.get("k")));
                redis.del("k");
                Soak.until("the cache is invalidated", () -> cache.get("k") == null);
            }
        });
        Soak.part("sentinel", () -> {
            RedisURI sentinel = RedisURI.Builder.sentinel(Soak.HOST, Soak.SENTINEL_PORT, "mymaster")
                    .build();
            RedisClient finding = RedisClient.create(sentinel);
            try (var found = finding.connect()) {
                Soak.same(found.sync().get("n"), "41");
            }
            finding.shutdown();
        });
        Soak.part("reconnection", () -> {
            redis.set("kept", "acknowledged");
            Soak.kill();
            // Lettuce connects and subscribes again by itself.
            Soak.same(redis.get("kept"), "acknowledged");
            Soak.until("a subscription", () -> redis.publish("c", "after") == 1);
            Soak.same(messages.poll(30, TimeUnit.SECONDS), "c after");
        });
        System.exit(0);
    }
}
