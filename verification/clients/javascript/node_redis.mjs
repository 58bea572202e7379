// node-redis against the node.
import assert from 'node:assert/strict';
import { createClient, createSentinel } from 'redis';
import { host, kill, part, port, sentinelPort, until } from './soak.mjs';

const redis = createClient({ socket: { host, port } });
redis.on('error', () => {}); // the node is killed below
await redis.connect();
await redis.flushAll();

await part('strings', async () => {
  assert.equal(await redis.set('a', 'x\0y\r\n'), 'OK');
  assert.equal(await redis.get('a'), 'x\0y\r\n');
  assert.equal(await redis.get('absent'), null);
  assert.equal(await redis.incrBy('n', 41), 41);
  assert.deepEqual(await redis.mGet(['a', 'n', 'absent']), ['x\0y\r\n', '41', null]);
});
await part('hashes', async () => {
  assert.equal(await redis.hSet('h', { f: '1', g: '2' }), 2);
  assert.deepEqual({ ...(await redis.hGetAll('h')) }, { f: '1', g: '2' });
  assert.equal(await redis.hIncrBy('h', 'f', 2), 3);
});
await part('sets', async () => {
  assert.equal(await redis.sAdd('s', ['b', 'a']), 2);
  assert.deepEqual([...(await redis.sMembers('s'))].sort(), ['a', 'b']);
  await assert.rejects(redis.get('s'), /WRONGTYPE/);
});
await part('transactions', async () => {
  assert.deepEqual(await redis.multi().set('t', '1').incr('t').get('t').exec(), ['OK', 2, '2']);
  await redis.watch('t');
  const other = redis.duplicate();
  await other.connect();
  await other.set('t', 'changed');
  await assert.rejects(redis.multi().set('t', 'lost').exec(), /watched keys/i);
  await other.close();
});
await part('pipelines', async () => {
  const replies = await Promise.all([...Array(10_000).keys()].map((i) => redis.set(`{p},${i}`, `${i}`)));
  assert.ok(replies.every((reply) => reply === 'OK'));
});
await part('scan', async () => {
  const seen = new Set();
  for await (const keys of redis.scanIterator({ MATCH: '{p},*', COUNT: 500 })) {
    keys.forEach((key) => seen.add(key));
  }
  assert.equal(seen.size, 10_000);
});
await part('expiry', async () => {
  await redis.set('e', '1', { expiration: { type: 'PX', value: 50 } });
  const left = await redis.pTTL('e');
  assert.ok(left > 0 && left <= 50);
  await until('the key expires', async () => (await redis.get('e')) === null);
});
const subscriber = redis.duplicate();
subscriber.on('error', () => {});
await subscriber.connect();
const messages = [];
await part('pubsub', async () => {
  await subscriber.subscribe('c', (text, channel) => messages.push([channel, text]));
  await subscriber.pSubscribe('p*', (text, channel) => messages.push([channel, text]));
  assert.equal(await redis.publish('c', 'one'), 1);
  assert.equal(await redis.publish('px', 'two'), 1);
  await until('two messages', () => messages.length === 2);
  assert.deepEqual(messages, [['c', 'one'], ['px', 'two']]);
});
await part('caching', async () => {
  const caching = createClient({
    RESP: 3, socket: { host, port }, clientSideCache: { ttl: 0, maxEntries: 100, evictPolicy: 'LRU' },
  });
  caching.on('error', () => {});
  await caching.connect();
  await redis.set('k', '1');
  assert.equal(await caching.get('k'), '1');
  const requests = async () => Number(/total_commands_processed:(\d+)/.exec(await redis.info())[1]);
  const before = await requests();
  for (let i = 0; i < 1000; i++) assert.equal(await caching.get('k'), '1');
  assert.ok((await requests()) - before < 100, 'the values come from the cache');
  await redis.set('k', '2');
  await until('the cache is invalidated', async () => (await caching.get('k')) === '2');
  await redis.del('k');
  await until('the cache is invalidated', async () => (await caching.get('k')) === null);
  await caching.close();
});
await part('sentinel', async () => {
  const found = createSentinel({
    name: 'mymaster', sentinelRootNodes: [{ host, port: sentinelPort }],
  });
  found.on('error', () => {});
  await found.connect();
  assert.equal(await found.get('n'), '41');
  await found.close();
});
await part('reconnection', async () => {
  await redis.set('kept', 'acknowledged');
  await kill();
  assert.equal(await redis.get('kept'), 'acknowledged');
  messages.length = 0;
  await until('a subscription', async () => (await redis.publish('c', 'after')) === 1);
  await until('a message', () => messages.length > 0);
});
process.exit(0);
