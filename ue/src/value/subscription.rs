//! Data of an AMF about a UE: its subscription (TS 29.503 clause 6.1.6.2.4), policy, security
//! contexts and capabilities.

use super::apn::Apn;
use super::bearer::Ambr;
use super::composite::composite;
use super::key::{Key128, Key256};
use super::list::list;
use super::name::{Uri, Uuid};
use super::nr::Tac;
use super::number::number;
use super::security::{KeySetIdentifier, NextHopCount};
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
    /// Type of an area restriction: 1 only in these areas, 2 not in these (TS 29.571 clause
    /// 5.4.3.4).
    AreaRule(u8), 1 bytes, 1 to 2, Decimal
}
number! {
    /// Usage type of a UE, for the choice of AMF (TS 23.501 clause 5.15.7).
    UsageType(u8), 1 bytes, 0 to 255, Decimal
}
number! {
    /// 5GMM capabilities of a UE, a bit for each (TS 24.501 clause 9.11.3.1): the first 4 octets.
    MmCapability(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}
number! {
    /// Cycle of discontinuous reception (TS 24.501 clause 9.11.3.2A): 32, 64, 128, 256 frames.
    DrxParameters(u8), 1 bytes, 0 to 4, Decimal
}
number! {
    /// Anti-bidding-down parameter between architectures (TS 33.501 clause A.7.1).
    Abba(u16), 2 bytes, 0 to 0xffff, Hex
}

list! {
    /// Areas of a restriction.
    Tacs of Tac, at most 16, drawn 3, salt 0
}

composite! {
    /// Service area restriction (TS 23.501 clause 5.3.4.1).
    ServiceArea, salt 0, text listed, drawn each {
        /// The type of the restriction.
        rule: AreaRule = "restrictionType",
        /// The areas.
        areas: Tacs = "tacs",
    }
}

composite! {
    /// Mobility restrictions (TS 23.501 clause 5.3.4.1).
    MobilityRestrictions, salt 0, text listed, drawn each {
        /// Restricted radio technologies.
        rats: RatRestrictions = "ratRestrictions",
        /// Restricted core networks.
        cores: CoreRestrictions = "coreNetworkTypeRestrictions",
        /// Restricted areas.
        service_area: ServiceArea = "serviceAreaRestriction",
    }
}

composite! {
    /// Access and mobility subscription (TS 29.503 clause 6.1.6.2.4).
    AccessSubscription, salt 0, text listed, drawn each {
        /// Maximum bit rate of the UE.
        ue_ambr: Ambr = "subscribedUeAmbr",
        /// Profile for the choice of radio technology and frequency.
        rfsp: SubscriberProfileId = "rfspIndex",
        /// Interval of periodic registration updates.
        update_s: UpdateSeconds = "subsRegTimer",
        /// Usage type.
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
        /// Its identifier.
        ksi: KeySetIdentifier = "ngKsi",
        /// The key from which all other keys are derived.
        k_amf: Key256 = "kAmf",
        /// Input of the derivation.
        abba: Abba = "abba",
    }
}

composite! {
    /// The keys that the AMF has sent to the gNB, and will send to the next one (TS 33.501 clause
    /// 6.9.2).
    AsSecurity, salt 0, text listed, drawn each {
        /// Key of this gNB.
        k_gnb: Key256 = "kGnb",
        /// Next hop: the key for the next gNB.
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
        /// The authentication token of the network.
        autn: Key128 = "autn",
        /// The hash of the expected response.
        hxres: Key128 = "hxresStar",
        /// The key from which `K_AMF` was derived.
        k_seaf: Key256 = "kSeaf",
    }
}

composite! {
    /// The decision of the PCF for a UE (TS 29.507 clause 5.6.2.2).
    PolicyDecision, salt 0, text listed, drawn each {
        /// Maximum bit rate of the UE.
        ue_ambr: Ambr = "ueAmbr",
        /// Profile for the choice of radio technology and frequency.
        rfsp: SubscriberProfileId = "rfsp",
        /// Service area restriction.
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
