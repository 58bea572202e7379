import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.csc.CacheConfig;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;

/** Jedis against the node. */
final class JedisSoak {
    private JedisSoak() {}

    public static void main(String[] args) throws Exception {
        HostAndPort address = new HostAndPort(Soak.HOST, Soak.PORT);
        Jedis redis = new Jedis(address);
        redis.flushAll();
        Soak.part("strings", () -> {
            byte[] value = {0, -1, 13, 10};
            Soak.same(redis.set("a".getBytes(), value), "OK");
            Soak.same(java.util.Arrays.equals(redis.get("a".getBytes()), value), true);
            Soak.same(redis.get("absent"), null);
            Soak.same(redis.incrBy("n", 41), 41L);
            Soak.same(redis.mget("n", "absent"), java.util.Arrays.asList("41", null));
        });
        Soak.part("hashes", () -> {
            Soak.same(redis.hset("h", Map.of("f", "1", "g", "2")), 2L);
            Soak.same(redis.hgetAll("h"), Map.of("f", "1", "g", "2"));
            Soak.same(redis.hincrBy("h", "f", 2), 3L);
        });
        Soak.part("sets", () -> {
            Soak.same(redis.sadd("s", "b", "a"), 2L);
            Soak.same(redis.smembers("s"), Set.of("a", "b"));
            try {
                redis.get("s");
                throw new AssertionError("a set is not a string");
            } catch (JedisDataException error) {
                Soak.same(error.getMessage().startsWith("WRONGTYPE"), true);
            }
        });
        Soak.part("transactions", () -> {
            var txn = redis.multi();
            txn.set("t", "1");
            txn.incr("t");
            txn.get("t");
            Soak.same(txn.exec(), List.of("OK", 2L, "2"));
            try (Jedis other = new Jedis(address)) {
                redis.watch("t");
                other.set("t", "changed");
                var lost = redis.multi();
                lost.set("t", "lost");
                Soak.same(lost.exec(), null);
            }
        });
        Soak.part("pipelines", () -> {
            var pipeline = redis.pipelined();
            for (int i = 0; i < 10_000; i++) {
                pipeline.set("{p}," + i, "" + i);
            }
            List<Object> replies = pipeline.syncAndReturnAll();
            Soak.same(replies.size(), 10_000);
            Soak.same(replies.stream().allMatch("OK"::equals), true);
        });
        Soak.part("scan", () -> {
            Set<String> seen = new HashSet<>();
            String cursor = "0";
            do {
                var page = redis.scan(cursor, new ScanParams().match("{p},*").count(500));
                seen.addAll(page.getResult());
                cursor = page.getCursor();
            } while (!cursor.equals("0"));
            Soak.same(seen.size(), 10_000);
        });
        Soak.part("expiry", () -> {
            redis.set("e", "1", SetParams.setParams().px(50));
            long left = redis.pttl("e");
            Soak.same(left > 0 && left <= 50, true);
            Soak.until("the key expires", () -> redis.get("e") == null);
        });
        Soak.part("pubsub", () -> pubsub(redis, address));
        Soak.part("caching", () -> caching(redis, address));
        Soak.part("sentinel", () -> {
            Set<HostAndPort> sentinels = Set.of(new HostAndPort(Soak.HOST, Soak.SENTINEL_PORT));
            try (RedisSentinelClient found = RedisSentinelClient.builder()
                    .masterName("mymaster").sentinels(sentinels).build()) {
                Soak.same(found.get("n"), "41");
                Soak.same(found.getCurrentMaster(), address);
            }
        });
        Soak.part("reconnection", () -> reconnection(address));
        System.exit(0);
    }

    private static void pubsub(Jedis redis, HostAndPort address) throws Exception {
        var messages = new LinkedBlockingQueue<String>();
        JedisPubSub listener = new JedisPubSub() {
            @Override
            public void onMessage(String channel, String text) {
                messages.add(channel + " " + text);
            }

            @Override
            public void onPMessage(String pattern, String channel, String text) {
                messages.add(pattern + " " + channel + " " + text);
            }
        };
        Thread thread = new Thread(() -> {
            try (Jedis subscriber = new Jedis(address)) {
                subscriber.psubscribe(listener, "p*");
            }
        });
        thread.start();
        Soak.until("a subscription", () -> redis.pubsubNumPat() == 1);
        listener.subscribe("c");
        Soak.until("a subscription", () -> redis.pubsubNumSub("c").get("c") == 1);
        Soak.same(redis.publish("c", "one"), 1L);
        Soak.same(redis.publish("px", "two"), 1L);
        Soak.same(messages.poll(30, TimeUnit.SECONDS), "c one");
        Soak.same(messages.poll(30, TimeUnit.SECONDS), "p* px two");
        listener.unsubscribe();
        listener.punsubscribe();
        thread.join(30_000);
        Soak.same(thread.isAlive(), false);
    }

    private static void caching(Jedis redis, HostAndPort address) throws Exception {
        var config = DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP3).build();
        CacheConfig cache = CacheConfig.builder().maxSize(100).build();
        try (RedisClient caching = RedisClient.builder()
                .hostAndPort(address).clientConfig(config).cacheConfig(cache).build()) {
            redis.set("k", "1");
            Soak.same(caching.get("k"), "1");
            long before = Soak.requests(redis.info());
            for (int i = 0; i < 1000; i++) {
                Soak.same(caching.get("k"), "1");
            }
            Soak.same(Soak.requests(redis.info()) - before < 100, true);
            redis.set("k", "2");
            Soak.until("the cache is invalidated", () -> "2".equals(caching.get("k")));
            redis.del("k");
            Soak.until("the cache is invalidated", () -> caching.get("k") == null);
        }
    }

    private static void reconnection(HostAndPort address) throws Exception {
        try (RedisClient pool = RedisClient.create(address)) {
            pool.set("kept", "acknowledged");
            Soak.kill();
            // The connections of the pool are broken; each call replaces one.
            Soak.until("a connection", () -> {
                try {
                    return "acknowledged".equals(pool.get("kept"));
                } catch (JedisConnectionException broken) {
                    return false;
                }
            });
        }
    }
}
