//! What an AMF keeps of a subscription (TS 29.503 clause 6.1.6.2.4), of the policy for it and of
//! the UE's abilities.

use super::apn::Apn;
use super::bearer::Ambr;
use super::composite::composite;
use super::key::{Key128, Key256};
use super::list::list;
use super::name::{Uri, Uuid};
use super::nr::Tac;
use super::number::number;
use super::security::{Algorithms, KeySetIdentifier, NasCount, NextHopCount, UeSecurityCapability};
use super::slice::Snssai;
use super::subscriber::{SubscriberProfileId, UpdateSeconds};

number! {
    /// Radio technologies that are not allowed, a bit for each (TS 29.571 clause 5.4.3.2).
    RatRestrictions(u8), 1 bytes, 0 to 255, Hex
}
number! {
    /// Core networks that are not allowed: 1 EPC, 2 5GC (TS 29.571 clause 5.4.3.7).
    CoreRestrictions(u8), 1 bytes, 0 to 3, Hex
}
number! {
    /// 1: only in these areas; 2: not in these (TS 29.571 clause 5.4.3.4).
    AreaRule(u8), 1 bytes, 1 to 2, Decimal
}
number! {
    /// How a UE is used, for the choice of AMF (TS 23.501 clause 5.15.7).
    UsageType(u8), 1 bytes, 0 to 255, Decimal
}
number! {
    /// Abilities of a UE in 5GMM, a bit for each (TS 24.501 clause 9.11.3.1): the first 4 octets.
    MmCapability(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}
number! {
    /// Cycle of discontinuous reception (TS 24.501 clause 9.11.3.2A): 32, 64, 128, 256 frames.
    DrxParameters(u8), 1 bytes, 0 to 4, Decimal
}
number! {
    /// Against bidding down between architectures (TS 33.501 clause A.7.1).
    Abba(u16), 2 bytes, 0 to 0xffff, Hex
}

list! {
    /// Areas of a restriction.
    Tacs of Tac, at most 16, drawn 3, salt 0
}

composite! {
    /// Where a UE may be served (TS 23.501 clause 5.3.4.1).
    ServiceArea, salt 0, text listed, drawn each {
        /// Only there, or not there.
        rule: AreaRule = "restrictionType",
        /// The areas.
        areas: Tacs = "tacs",
    }
}

composite! {
    /// Mobility restrictions (TS 23.501 clause 5.3.4.1).
    MobilityRestrictions, salt 0, text listed, drawn each {
        /// Radio technologies.
        rats: RatRestrictions = "ratRestrictions",
        /// Core networks.
        cores: CoreRestrictions = "coreNetworkTypeRestrictions",
        /// Areas.
        service_area: ServiceArea = "serviceAreaRestriction",
    }
}

composite! {
    /// Access and mobility subscription (TS 29.503 clause 6.1.6.2.4).
    AccessSubscription, salt 0, text listed, drawn each {
        /// Most that the UE may take.
        ue_ambr: Ambr = "subscribedUeAmbr",
        /// For the choice of radio.
        rfsp: SubscriberProfileId = "rfspIndex",
        /// Interval of periodic registration updates.
        update_s: UpdateSeconds = "subsRegTimer",
        /// How it is used.
        usage: UsageType = "ueUsageType",
    }
}

composite! {
    /// A data network that a subscriber may use in a slice (TS 29.503 clause 6.1.6.2.12).
    SubscribedDnn, salt 0, text listed, drawn each {
        /// The slice.
        snssai: Snssai = "sNssai",
        /// The network.
        dnn: Apn = "dnn",
    }
}

list! {
    /// Data networks of a subscriber, by slice.
    SubscribedDnns of SubscribedDnn, at most 4, drawn 2, salt 0
}

composite! {
    /// The security context that a UE and its AMF share after authentication (TS 33.501 clause
    /// 6.2).
    MasterKey, salt 0, text listed, drawn each {
        /// Its name on the air.
        ksi: KeySetIdentifier = "ngKsi",
        /// The key from which all other keys are derived.
        k_amf: Key256 = "kAmf",
        /// Goes into the derivation.
        abba: Abba = "abba",
    }
}

composite! {
    /// Between a UE and its AMF (TS 33.501 clause 6.4).
    NasSecurity, salt 0, text listed, drawn each {
        /// Against change.
        k_nas_int: Key128 = "kNasInt",
        /// Against being read.
        k_nas_enc: Key128 = "kNasEnc",
        /// Messages from the UE.
        uplink_count: NasCount = "uplinkCount",
        /// Messages to the UE.
        downlink_count: NasCount = "downlinkCount",
        /// What was chosen.
        algorithms: Algorithms = "algorithms",
        /// What could have been.
        capability: UeSecurityCapability = "ueSecurityCapability",
    }
}

composite! {
    /// What the AMF sent to the gNB, and will send to the next one (TS 33.501 clause 6.9.2).
    AsSecurity, salt 0, text listed, drawn each {
        /// Of this gNB.
        k_gnb: Key256 = "kGnb",
        /// Of the next.
        next_hop: Key256 = "nh",
        /// Its number.
        ncc: NextHopCount = "ncc",
    }
}

composite! {
    /// The results of authentication (TS 33.501 clause 6.1.3.2).
    AuthenticationVector, salt 0, text listed, drawn each {
        /// The challenge.
        rand: Key128 = "rand",
        /// Its proof.
        autn: Key128 = "autn",
        /// The hash of the answer.
        hxres: Key128 = "hxresStar",
        /// What `K_AMF` was derived from.
        k_seaf: Key256 = "kSeaf",
    }
}

composite! {
    /// What the policy control function decided for a UE (TS 29.507 clause 5.6.2.2).
    PolicyDecision, salt 0, text listed, drawn each {
        /// Most that the UE may take.
        ue_ambr: Ambr = "ueAmbr",
        /// For the choice of radio.
        rfsp: SubscriberProfileId = "rfsp",
        /// Where it may be served.
        service_area: ServiceArea = "servAreaRes",
    }
}

number! {
    /// The subscribed events, one bit each (TS 29.518 clause 6.2.6.3.3).
    AmfEvents(u16), 2 bytes, 1 to 0xffff, Hex
}

composite! {
    /// A subscription to events of a UE (TS 29.518 clause 6.2.6.2.2).
    EventSubscription, salt 0, text listed, drawn each {
        /// Its identifier at this AMF.
        id: Uuid = "subscriptionId",
        /// The network function that subscribed.
        consumer: Uuid = "nfId",
        /// The subscribed events.
        events: AmfEvents = "eventTypes",
        /// The address for notifications.
        notify: Uri = "eventNotifyUri",
    }
}
