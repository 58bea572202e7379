// ioredis against the node.
import assert from 'node:assert/strict';
import { Redis } from 'ioredis';
import { host, kill, part, port, sentinelPort, until } from './soak.mjs';

const redis = new Redis({ host, port });
redis.on('error', () => {}); // the node is killed below
await redis.flushall();

await part('strings', async () => {
  const value = Buffer.from([0, 255, 13, 10]);
  assert.equal(await redis.set('a', value), 'OK');
  assert.deepEqual(await redis.getBuffer('a'), value);
  assert.equal(await redis.get('absent'), null);
  assert.equal(await redis.incrby('n', 41), 41);
  assert.equal(await redis.set('a', 'new', 'GET', 'XX'), value.toString());
  assert.deepEqual(await redis.mget('a', 'n', 'absent'), ['new', '41', null]);
});
await part('hashes', async () => {
  assert.equal(await redis.hset('h', { f: '1', g: '2' }), 2);
  assert.deepEqual(await redis.hgetall('h'), { f: '1', g: '2' });
  assert.equal(await redis.hincrby('h', 'f', 2), 3);
  assert.deepEqual(await redis.hgetall('absent'), {});
});
await part('sets', async () => {
  assert.equal(await redis.sadd('s', 'b', 'a'), 2);
  assert.deepEqual((await redis.smembers('s')).sort(), ['a', 'b']);
  await assert.rejects(redis.get('s'), /WRONGTYPE/);
});
await part('transactions', async () => {
  assert.deepEqual(await redis.multi().set('t', 1).incr('t').get('t').exec(),
    [[null, 'OK'], [null, 2], [null, '2']]);
  const other = redis.duplicate();
  await redis.watch('t');
  await other.set('t', 'changed');
  assert.equal(await redis.multi().set('t', 'lost').exec(), null);
  other.disconnect();
});
await part('pipelines', async () => {
  const pipeline = redis.pipeline();
  for (let i = 0; i < 10_000; i++) pipeline.set(`{p},${i}`, i);
  const replies = await pipeline.exec();
  assert.ok(replies.every(([error, reply]) => error === null && reply === 'OK'));
  const automatic = new Redis({ host, port, enableAutoPipelining: true });
  const values = await Promise.all([...Array(1000).keys()].map((i) => automatic.get(`{p},${i}`)));
  assert.deepEqual(values, [...Array(1000).keys()].map(String));
  automatic.disconnect();
});
await part('scan', async () => {
  const seen = new Set();
  for await (const keys of redis.scanStream({ match: '{p},*', count: 500 })) {
    keys.forEach((key) => seen.add(key));
  }
  assert.equal(seen.size, 10_000);
});
await part('expiry', async () => {
  await redis.set('e', '1', 'PX', 50);
  const left = await redis.pttl('e');
  assert.ok(left > 0 && left <= 50);
  await until('the key expires', async () => (await redis.get('e')) === null);
});
const subscriber = redis.duplicate();
subscriber.on('error', () => {});
await part('pubsub', async () => {
  const messages = [];
  subscriber.on('message', (channel, text) => messages.push([channel, text]));
  subscriber.on('pmessage', (pattern, channel, text) => messages.push([pattern, channel, text]));
  assert.equal(await subscriber.subscribe('c'), 1);
  assert.equal(await subscriber.psubscribe('p*'), 2);
  assert.equal(await redis.publish('c', 'one'), 1);
  assert.equal(await redis.publish('px', 'two'), 1);
  await until('two messages', () => messages.length === 2);
  assert.deepEqual(messages, [['c', 'one'], ['p*', 'px', 'two']]);
});
await part('sentinel', async () => {
  const found = new Redis({ sentinels: [{ host, port: sentinelPort }], name: 'mymaster' });
  assert.equal(await found.get('n'), '41');
  found.disconnect();
});
await part('reconnection', async () => {
  await redis.set('kept', 'acknowledged');
  await kill();
  assert.equal(await redis.get('kept'), 'acknowledged');
  // ioredis subscribes again by itself.
  const again = new Promise((resolve) => subscriber.on('message', (_, text) => resolve(text)));
  await until('a subscription', async () => (await redis.publish('c', 'after')) === 1);
  assert.equal(await again, 'after');
});
redis.disconnect();
subscriber.disconnect();
process.exit(0);
