//! Tags that are declared for records that are there already.

use nearstate_store::{
    CreateOptions, EventKind, Filter, Labels, Notice, Region, Schema, TagSchema, check,
    now_ms_coarse,
};

/// A record whose time had passed and that nobody had collected was in no index, and whoever
/// declared tags beside it left a region that the check found at fault.
#[test]
fn a_record_whose_time_has_passed_does_not_stand_in_the_way_of_a_new_tag() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("late", &Schema::default()).unwrap();
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    let put = |key: &[u8], expires_ms| {
        let labels = Labels { tags: &[("guti", b"g1"), ("cell", b"5")], expires_ms };
        session.transact(|txn| txn.put_labelled(ns, key, b"v", labels)).unwrap();
    };
    put(b"past", now_ms_coarse() - 1000);
    put(b"present", 0);
    let tag = |name: &str, is_unique| TagSchema {
        name: name.to_owned(),
        is_unique,
        is_counted: true,
        is_required: true,
        ..TagSchema::default()
    };
    session.add_tags(ns, &[tag("guti", true), tag("cell", false)]).unwrap();
    assert_eq!(session.find(ns, "guti", b"g1").unwrap().unwrap().key(), b"present");
    assert_eq!(session.count_tagged(ns, "cell", b"5").unwrap(), 1);
    let mut ended = 0;
    while let Some(notice) = watch.next().unwrap() {
        let Notice::Event(event) = notice else { continue };
        ended += u32::from((event.kind, event.key) == (EventKind::Expired, b"past"));
    }
    assert_eq!(ended, 1);
    assert_eq!(session.collect_expired(10).unwrap().records, 0);
    drop((watch, session, region));
    let report = check(&path).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}
