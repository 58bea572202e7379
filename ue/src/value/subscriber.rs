//! The subscription data of the HSS (TS 29.272) that a context keeps while the UE is not attached.

use super::bearer::Ambr;
use super::composite::composite;
use super::identity::Msisdn;
use super::number::number;

number! {
    /// Radio technologies that are not allowed, a bit for each (TS 29.272 clause 7.3.31).
    AccessRestriction(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}
number! {
    /// Services that the operator bars, a bit for each (TS 29.272 clause 7.3.30).
    OperatorBarring(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}
number! {
    /// Network access mode: 0 packet and circuit, 1 reserved, 2 packet only (TS 29.272 clause
    /// 7.3.21).
    NetworkAccessMode(u8), 1 bytes, 0 to 2, Decimal
}
number! {
    /// Charging characteristics (TS 32.251 annex A).
    ChargingCharacteristics(u16), 2 bytes, 0 to 0xffff, Hex
}
number! {
    /// Subscriber profile for the choice of radio technology and frequency (TS 36.413 clause
    /// 9.2.1.39).
    SubscriberProfileId(u16), 2 bytes, 1 to 256, Decimal
}
number! {
    /// Seconds between two tracking area updates of a UE that does not move (TS 29.272 clause
    /// 7.3.134).
    UpdateSeconds(u32), 4 bytes, 0 to 0xffff_ffff, Decimal, drawn 1800 to 43_200
}

composite! {
    /// Restrictions of a subscriber's access.
    AccessProfile, salt 0, text listed, drawn each {
        /// Restricted radio technologies.
        restriction: AccessRestriction = "accessRestrictionData",
        /// Barred services.
        barring: OperatorBarring = "operatorDeterminedBarring",
        /// Network access mode.
        mode: NetworkAccessMode = "networkAccessMode",
        /// Charging.
        charging: ChargingCharacteristics = "chargingCharacteristics",
    }
}

composite! {
    /// The subscription of a UE.
    SubscriberProfile, salt 0, text listed, drawn each {
        /// Telephone number.
        msisdn: Msisdn = "msisdn",
        /// Profile for the choice of radio technology and frequency.
        profile_id: SubscriberProfileId = "subscriberProfileId",
        /// Maximum bit rate over all networks.
        ue_ambr: Ambr = "subscribedUeAmbr",
        /// Interval of periodic updates.
        update_s: UpdateSeconds = "subscribedPeriodicTauTimer",
    }
}
