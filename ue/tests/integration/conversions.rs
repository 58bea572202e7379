//! A context as text, as JSON and as tags.

use std::net::Ipv4Addr;

use nearstate_ue::five_g;
use nearstate_ue::five_g::procedure::SessionIndex;
use nearstate_ue::value::address::UeAddress;
use nearstate_ue::value::area::{Tac, Tai};
use nearstate_ue::value::identity::Imsi;
use nearstate_ue::value::key::Key256;
use nearstate_ue::value::plmn::Plmn;
use nearstate_ue::value::security::{AsSecurity, KeySetIdentifier, MasterKey};
use nearstate_ue::value::{Value, to_bytes};
use nearstate_ue::{Context, KeyText, Procedure, SCHEMA, Variable, apply, blocks_touched, tags};
use serde_json::{Value as Json, json};

fn attached() -> Context {
    let mut context = Context::provisioned(7, 1);
    apply(Procedure::InitialAttach, &mut context, 42);
    context
}

#[test]
fn values_have_the_usual_text_forms_of_3gpp() {
    let mut context = Context::EMPTY;
    context.set_imsi(Imsi::new("262011234567890").unwrap());
    context.set_tai(Tai { plmn: Plmn::new("262", "01").unwrap(), tac: Tac::new(0x1a2b).unwrap() });
    context.set_k_master(MasterKey {
        ksi: KeySetIdentifier::new(3).unwrap(),
        k_asme: Key256::new([0xab; 32]),
    });
    context.set_ip(UeAddress::V4(Ipv4Addr::new(10, 1, 2, 3)));
    let line = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.contains(&format!(" {name} "))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = context.to_string();
    assert_eq!(line(&text, "IMSI"), "IMSI 262011234567890");
    assert_eq!(line(&text, "TAI"), "TAI 262-01-1a2b");
    assert_eq!(line(&text, "IP"), "IP 10.1.2.3");
    assert_eq!(line(&text, "K master"), "Security K master eKsi 3, kAsme abab..");
    assert_eq!(line(&text, "GUTI"), "GUTI -");
    let whole = context.view().text(KeyText::Whole).to_string();
    assert!(whole.contains(&"ab".repeat(32)) && !text.contains(&"ab".repeat(3)));
    assert!(!format!("{context:?}").contains(&"ab".repeat(3)), "debug output shows no key");
}

#[test]
fn a_context_survives_a_round_trip_through_json() {
    let context = attached();
    let text = context.view().json(KeyText::Whole).to_string();
    let json: Json = serde_json::from_str(&text).unwrap();
    assert_eq!(Context::from_json(&json).unwrap(), context);
    assert_eq!(json["tai"]["plmnId"], json!({"mcc": "001", "mnc": "01"}));
    let short = context.view().json(KeyText::Short);
    assert!(short["asSecurity"]["kEnb"].as_str().unwrap().ends_with(".."));

    let mut context = five_g::Context::provisioned(7, 1);
    five_g::procedure::apply(five_g::procedure::Procedure::Registration, &mut context, 42);
    let json = context.view().json(KeyText::Whole);
    assert_eq!(five_g::Context::from_json(&json).unwrap(), context);
    assert_eq!(json["supi"], "imsi-001010000000007");
}

#[test]
fn hostile_json_of_5gs_is_rejected_with_the_name_of_the_variable() {
    use five_g::procedure::{Procedure, apply};
    let mut context = five_g::Context::provisioned(7, 1);
    for procedure in [
        Procedure::Registration,
        Procedure::ServiceRequest,
        Procedure::SessionEstablishment(SessionIndex::First),
        Procedure::SessionEstablishment(SessionIndex::Second),
        Procedure::SessionEstablishment(SessionIndex::Third),
        Procedure::SessionEstablishment(SessionIndex::Fourth),
    ] {
        apply(procedure, &mut context, 42);
    }
    let good = context.view().json(KeyText::Whole);
    for variable in five_g::Variable::ALL {
        let name = variable.json_name();
        assert!(good.get(name).is_some(), "{name}");
        for wrong in [json!(null), json!(true), json!(-1), json!("\\"), json!([]), json!({})] {
            let mut json = good.clone();
            json[name] = wrong.clone();
            let said = five_g::Context::from_json(&json).unwrap_err().to_string();
            assert!(said.starts_with(&format!("not a UE context: {name}: ")), "{wrong}: {said}");
        }
    }
    let deep = [
        ("/pduSession1/dnn", json!(".."), "pduSession1: dnn: "),
        ("/pduSession1/smContextRef", json!("urn:uuid:1"), "pduSession1: smContextRef: "),
        ("/allowedNssai/1/sd", json!("1234567"), "allowedNssai: sd: "),
        ("/supi", json!("262011234567890"), "supi: "),
        ("/pei", json!("imeisv-123"), "pei: "),
        (
            "/amfUeNgapId",
            json!(1_u64 << 40),
            "amfUeNgapId: 1099511627776 is not a valid AmfUeNgapId",
        ),
    ];
    for (pointer, wrong, beginning) in deep {
        let mut json = good.clone();
        *json.pointer_mut(pointer).unwrap() = wrong;
        let said = five_g::Context::from_json(&json).unwrap_err().to_string();
        let rest = said.strip_prefix("not a UE context: ").unwrap();
        assert!(rest.starts_with(beginning), "{pointer}: {rest}");
    }
}

#[test]
fn hostile_json_is_rejected_with_the_name_of_the_variable() {
    let good = attached().view().json(KeyText::Whole);
    let said = |json: &Json| Context::from_json(json).unwrap_err().to_string();
    // Each value in turn is replaced by an invalid one.
    for variable in Variable::ALL {
        let name = variable.json_name();
        for wrong in [json!(null), json!(true), json!(-1), json!("?"), json!([]), json!({})] {
            let mut json = good.clone();
            json[name] = wrong.clone();
            let said = said(&json);
            assert!(said.starts_with(&format!("not a UE context: {name}: ")), "{wrong}: {said}");
        }
    }
    let deep = [
        ("/tai/tac", json!("12345"), "tai: tac: give 1 to 4 hexadecimal digits"),
        ("/guti/gummei/plmnId/mcc", json!("12"), "guti: gummei: plmnId: "),
        ("/s5Teid/uplink/teid", json!("0"), "s5Teid: uplink: teid: "),
        ("/epsBearerId", json!(4), "epsBearerId: 4 is not a valid EpsBearerId: give 5 to 15"),
        ("/epsBearerId", json!(1e40), "epsBearerId: give a whole number"),
        ("/asSecurity/ncc", json!(256), "asSecurity: ncc: "),
        ("/asSecurity/algorithms/integrity", json!(8), "asSecurity: algorithms: integrity: 8 "),
        ("/asSecurity/kEnb", json!("ab"), "asSecurity: kEnb: give 64 hexadecimal digits"),
        ("/apn", json!("a".repeat(1 << 20)), "apn: "),
        ("/imsi", json!("00101000000000é"), "imsi: "),
        ("/tftUl", json!("zz"), "tftUl: "),
        ("/ip/ipv6Prefix", json!("2001:db8::1/64"), "ip: ipv6Prefix: "),
    ];
    for (pointer, wrong, beginning) in deep {
        let mut json = good.clone();
        *json.pointer_mut(pointer).unwrap() = wrong;
        let said = said(&json);
        let rest = said.strip_prefix("not a UE context: ").unwrap();
        assert!(rest.starts_with(beginning), "{pointer}: {rest}");
    }
    let mut extra = good.clone();
    extra["tai"]["colour"] = json!("red");
    assert!(said(&extra).contains("tai: unknown member \"colour\": give plmnId, tac"));
    assert!(said(&json!({"colour": "red"})).contains("\"colour\" is not one of its variables"));
    assert!(said(&json!([])).contains("give a JSON object, not a list"));
    let mut missing = good.clone();
    missing["tai"].as_object_mut().unwrap().remove("tac");
    assert!(said(&missing).contains("tai: tac is missing"));
}

#[test]
fn tags_are_the_bytes_of_the_present_variables() {
    let context = attached();
    let view = context.view();
    let found: Vec<(&str, Vec<u8>)> =
        tags(&view).map(|(name, value)| (name, value.to_vec())).collect();
    let Some(UeAddress::V4V6(v4, v6)) = view.ip() else { panic!("the context has both addresses") };
    let s5 = view.s5().unwrap();
    let expected = vec![
        ("imsi", to_bytes(&view.imsi().unwrap())),
        ("guti", to_bytes(&view.guti().unwrap())),
        ("ip", v4.octets().to_vec()),
        ("ip", v6.address().octets()[..8].to_vec()),
        ("s1-teid", to_bytes(&view.s1_uplink().unwrap())),
        ("s1-teid", to_bytes(&view.s1_downlink().unwrap())),
        ("s5-teid", to_bytes(&s5.uplink)),
        ("s5-teid", to_bytes(&s5.downlink)),
    ];
    assert_eq!(found, expected);
    assert_eq!(found.len(), nearstate_ue::four_g::tags::TAGS_MAX);
    let names: Vec<&str> = SCHEMA.iter().map(|tag| tag.name).collect();
    assert!(found.iter().all(|(name, _)| names.contains(name)));
    let unique: Vec<&str> = SCHEMA.iter().filter(|tag| tag.is_unique).map(|tag| tag.name).collect();
    assert_eq!(unique, ["imsi", "guti"]);

    let known = Context::provisioned(7, 1);
    let known = known.view();
    let names: Vec<&str> = tags(&known).map(|(name, _)| name).collect();
    assert_eq!(names, ["imsi", "guti"]);
}

#[test]
fn tags_of_5gs_identify_the_ue_and_each_session() {
    use five_g::procedure::{Procedure, apply};
    let mut context = five_g::Context::provisioned(7, 1);
    apply(Procedure::Registration, &mut context, 42);
    apply(Procedure::SessionEstablishment(SessionIndex::Third), &mut context, 43);
    let view = context.view();
    let found: Vec<(&str, Vec<u8>)> =
        five_g::tags::tags(&view).map(|(name, value)| (name, value.to_vec())).collect();
    let session = view.session_3().unwrap();
    let expected = vec![
        ("supi", to_bytes(&view.supi().unwrap())),
        ("5g-guti", to_bytes(&view.guti().unwrap())),
        ("amf-ue-ngap-id", to_bytes(&view.amf_ue_ngap_id().unwrap())),
        ("sm-context", session.sm_context.as_bytes().to_vec()),
        ("ip", to_bytes(&session.address.v4().unwrap())),
        ("ip", session.address.v6().unwrap().address().octets()[..8].to_vec()),
        ("n3-teid", to_bytes(&session.upf)),
    ];
    assert_eq!(found, expected);
    let names: Vec<&str> = five_g::tags::SCHEMA.iter().map(|tag| tag.name).collect();
    assert!(found.iter().all(|(name, _)| names.contains(name)));
}

/// The changes that a network function makes without `apply`.
#[test]
fn setters_change_their_variable_and_its_block_only() {
    let mut context = attached();
    let before = context;
    let mut tai = context.view().tai().unwrap();
    tai.tac = Tac::new(0xbeef).unwrap();
    context.set_tai(tai);
    assert_eq!(context.view().tai(), Some(tai));
    for variable in Variable::ALL.iter().filter(|variable| **variable != Variable::Tai) {
        assert_eq!(context.view().raw(*variable), before.view().raw(*variable), "{variable}");
    }
    context.set_tai(None);
    assert!(context.view().tai().is_none() && !context.view().has(Variable::Tai));
    assert!(nearstate_ue::ContextView::new(context.as_bytes()).is_ok());
    let radio = blocks_touched(Procedure::S1Release).iter().next().unwrap();
    assert!(!context.view().is_block_empty(radio));
    apply(Procedure::S1Release, &mut context, 0);
    assert!(context.view().is_block_empty(radio));
}

#[test]
fn every_type_survives_a_round_trip_through_bytes() {
    let context = attached();
    let view = context.view();
    let as_security = view.as_security().unwrap();
    let bytes = to_bytes(&as_security);
    assert_eq!(Some(bytes.as_slice()), view.raw(Variable::AsSecurity));
    assert_eq!(AsSecurity::load(&bytes), as_security);
}
