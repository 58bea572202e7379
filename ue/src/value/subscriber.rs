//! The subscription data of the home subscriber server (TS 29.272), as far as a context
//! keeps while the UE is not attached.

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
    /// 0 packets and circuits, 1 reserved, 2 packets only (TS 29.272 clause 7.3.21).
    NetworkAccessMode(u8), 1 bytes, 0 to 2, Decimal
}
number! {
    /// How the subscriber is charged (TS 32.251 annex A).
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
    /// How a subscriber may attach.
    AccessProfile, salt 0, text listed, drawn each {
        /// Radio technologies.
        restriction: AccessRestriction = "accessRestrictionData",
        /// Services.
        barring: OperatorBarring = "operatorDeterminedBarring",
        /// Packets, circuits.
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
        /// For the choice of radio.
        profile_id: SubscriberProfileId = "subscriberProfileId",
        /// At most, over all networks.
        ue_ambr: Ambr = "subscribedUeAmbr",
        /// Interval of periodic updates.
        update_s: UpdateSeconds = "subscribedPeriodicTauTimer",
    }
}
