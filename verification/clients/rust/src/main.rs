//! redis-rs against the node, as a long test runs it. `ok NAME` on standard output reports a part
//! that passed. `kill` asks for a SIGKILL of the node; a line on standard input reports that it
//! runs again, with the same region.

use redis::sentinel::{SentinelClient, SentinelServerType};
use redis::{Client, Commands, Connection, RedisResult};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use std::{env, io, thread};

fn part(name: &str, run: impl FnOnce()) {
    run();
    println!("ok {name}");
}

fn kill() {
    println!("kill");
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line, "restarted\n");
}

/// Waits until a condition holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "{what}: 30 s");
        thread::sleep(Duration::from_millis(2));
    }
}

fn main() {
    let setting = |name| env::var(name).unwrap();
    let host = setting("NEARSTATE_HOST");
    let client = Client::open(format!("redis://{host}:{}", setting("NEARSTATE_PORT"))).unwrap();
    let mut db = client.get_connection().unwrap();
    redis::cmd("FLUSHALL").exec(&mut db).unwrap();
    part("strings", || {
        let value = vec![0_u8, 255, 13, 10];
        let () = db.set("a", &value).unwrap();
        assert_eq!(db.get::<_, Vec<u8>>("a").unwrap(), value);
        assert_eq!(db.get::<_, Option<String>>("absent").unwrap(), None);
        assert_eq!(db.incr::<_, _, i64>("n", 41).unwrap(), 41);
    });
    part("hashes", || {
        let () = db.hset_multiple("h", &[("f", 1), ("g", 2)]).unwrap();
        let all: HashMap<String, i64> = db.hgetall("h").unwrap();
        assert_eq!(all, HashMap::from([("f".to_owned(), 1), ("g".to_owned(), 2)]));
    });
    part("sets", || {
        assert_eq!(db.sadd::<_, _, usize>("s", &["b", "a"]).unwrap(), 2);
        let members: HashSet<String> = db.smembers("s").unwrap();
        assert_eq!(members, HashSet::from(["a".to_owned(), "b".to_owned()]));
        let error = db.get::<_, String>("s").unwrap_err();
        assert_eq!(error.code(), Some("WRONGTYPE"));
    });
    part("transactions", || {
        let mut pipe = redis::pipe();
        pipe.atomic().set("t", 1).ignore().incr("t", 1).get("t");
        assert_eq!(pipe.query::<(i64, i64)>(&mut db).unwrap(), (2, 2));
        redis::cmd("WATCH").arg("t").exec(&mut db).unwrap();
        let () = client.get_connection().unwrap().set("t", "changed").unwrap();
        let lost: Option<()> = redis::pipe().atomic().set("t", "lost").query(&mut db).unwrap();
        assert_eq!(lost, None);
    });
    part("pipelines", || {
        let mut pipe = redis::pipe();
        for number in 0..10_000 {
            pipe.set(format!("{{p}},{number}"), number);
        }
        let replies: Vec<String> = pipe.query(&mut db).unwrap();
        assert!(replies.len() == 10_000 && replies.iter().all(|reply| reply == "OK"));
    });
    part("scan", || {
        let keys = db.scan_match::<_, String>("{p},*").unwrap();
        assert_eq!(keys.map(Result::unwrap).collect::<HashSet<_>>().len(), 10_000);
    });
    part("expiry", || {
        let () = db.pset_ex("e", 1, 50).unwrap();
        assert!((1..=50).contains(&db.pttl::<_, i64>("e").unwrap()));
        until("the key expires", || db.get::<_, Option<i64>>("e").unwrap().is_none());
    });
    part("pubsub", || pubsub(&client, &mut db));
    part("sentinel", || sentinel(&host, &setting("NEARSTATE_SENTINEL_PORT")));
    part("reconnection", || {
        let () = db.set("kept", "acknowledged").unwrap();
        kill();
        let broken: RedisResult<String> = db.get("kept");
        assert!(broken.unwrap_err().is_unrecoverable_error());
        db = client.get_connection().unwrap();
        assert_eq!(db.get::<_, String>("kept").unwrap(), "acknowledged");
    });
}

fn pubsub(client: &Client, db: &mut Connection) {
    let mut connection = client.get_connection().unwrap();
    let mut subscriber = connection.as_pubsub();
    subscriber.subscribe("c").unwrap();
    subscriber.psubscribe("p*").unwrap();
    assert_eq!(db.publish::<_, _, usize>("c", "one").unwrap(), 1);
    assert_eq!(db.publish::<_, _, usize>("px", "two").unwrap(), 1);
    for (channel, text) in [("c", "one"), ("px", "two")] {
        let message = subscriber.get_message().unwrap();
        let received = (message.get_channel_name(), message.get_payload::<String>().unwrap());
        assert_eq!(received, (channel, text.to_owned()));
    }
}

fn sentinel(host: &str, port: &str) {
    let addresses = vec![format!("redis://{host}:{port}")];
    let master = SentinelServerType::Master;
    let client = SentinelClient::build(addresses, "mymaster".to_owned(), None, master);
    let mut connection = client.unwrap().get_connection().unwrap();
    assert_eq!(connection.get::<_, i64>("n").unwrap(), 41);
}
