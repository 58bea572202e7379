//! The context of a UE in an AMF: the variables of TS 23.502 clause 5.2.2.2.2 and TS 29.518 clause
//! 6.1.6.2.25 that one access needs, and the UPF's tunnel end of each session.
//!
//! Paper 2 has no table for 5GS. The effects follow from the procedures of TS 23.502. Variables
//! whose EPS counterparts survive a detach in paper 2 (identities, keys, areas) survive a
//! deregistration.
//!
//! A UE has up to [`SESSIONS_MAX`] PDU sessions, each with its own block and its own kinds of
//! procedures, so the last procedure of each kind determines the bytes. An empty block (a session
//! that does not exist) need not be stored.
//!
//! With two sessions a context has 1,759 B in six non-empty blocks (2,025 B in all blocks). As JSON
//! it has 4.4 KB. An open-source AMF (OMEC) was measured at 4,766 B of JSON, which each change
//! writes as a whole. A service request writes one block of 98 B.
//!
//! ```
//! use nearstate_ue::five_g::procedure::{Procedure, SessionIndex, apply};
//! use nearstate_ue::five_g::{Context, ContextView};
//! use nearstate_ue::value::{nr::{Tac, Tai}, plmn::Plmn};
//!
//! let mut context = Context::provisioned(7, 1);
//! apply(Procedure::Registration, &mut context, 42);
//! let internet = Procedure::SessionEstablishment(SessionIndex::First);
//! assert!(internet.is_legal(context.view()));
//! apply(internet, &mut context, 43);
//! assert!(!internet.is_legal(context.view()));
//!
//! context.set_tai(Tai { plmn: Plmn::new("262", "01")?, tac: Tac::new(0x1a2b)? });
//! let view = ContextView::new(context.as_bytes())?;
//! assert_eq!(view.tai().unwrap().to_string(), "262-01-001a2b");
//! assert_eq!(view.supi().unwrap().to_string(), "imsi-001010000000007");
//! # Ok::<(), nearstate_model::Error>(())
//! ```

use crate::schema::schema;
use crate::value::identity::{Gpsi, Pei, Supi};
use crate::value::name::{RadioCapabilityId, Uri, Uuid};
use crate::value::nr::{
    AmfUeNgapId, EstablishmentCause, FiveGGuti, GlobalGnbId, Guami, Ncgi, RanUeNgapId, Seconds,
    Tai, TaiList,
};
use crate::value::security::NasSecurity;
use crate::value::session::{PduSession, PduSessionStatus, SessionQos};
use crate::value::slice::{LongNssai, Nssai};
use crate::value::subscription::{
    AccessSubscription, AsSecurity, AuthenticationVector, DrxParameters, EventSubscription,
    MasterKey, MmCapability, MobilityRestrictions, PolicyDecision, SubscribedDnns,
};

pub mod state;
pub mod tags;
pub mod procedure;

/// The largest number of PDU sessions of a context. TS 24.007 allows 15; phones have one to three.
pub const SESSIONS_MAX: usize = 4;

// The columns: registration, deregistration, service request, AN release, Xn handover, N2 handover,
// mobility registration update; then of a session its establishment, modification, release.
schema! {
    format 1
    categories {
        /// Identities of the UE.
        Identities "Identities",
        /// Current location and registration area.
        Location "Location",
        /// Keys, counts and algorithms.
        Security "Security",
        /// Slices.
        Slices "Slices",
        /// Subscription and policies.
        Subscription "Subscription and policy",
        /// User-plane paths.
        Sessions "PDU sessions",
    }
    blocks {
        /// Subscriber: no procedure writes it.
        Subscriber "subscriber",
        /// Keys and temporary algorithms: written by the registration only.
        Security "security",
        /// Registration: removed by the deregistration.
        Registration "registration",
        /// Temporary identity, areas, slices in use: written by registration and mobility update.
        Mobility "mobility",
        /// Variables that are removed with the radio connection.
        Access "access",
        /// A PDU session.
        Session1 "session1",
        /// A PDU session.
        Session2 "session2",
        /// A PDU session.
        Session3 "session3",
        /// A PDU session.
        Session4 "session4",
    }
    variables {
        /// Permanent identity; unique.
        supi set_supi Supi: Supi,
            "SUPI" "supi" Identities Subscriber,
            60 "TS 23.003 clause 2.2A" [- - - - - - - - - -];
        /// Public identity.
        gpsi set_gpsi Gpsi: Gpsi,
            "GPSI" "gpsi" Identities Subscriber,
            60 "TS 23.003 clause 28.8" [- - - - - - - - - -];
        /// Equipment.
        pei set_pei Pei: Pei,
            "PEI" "pei" Identities Registration,
            64 "TS 23.003 clause 6.4" [+ x - - - - - - - -];
        /// Temporary identity; unique.
        guti set_guti Guti: FiveGGuti,
            "5G-GUTI" "5gGuti" Identities Mobility,
            80 "TS 23.003 clause 2.10.1" [+ - - - - - U - - -];
        /// Identifier of the UE at its AMF.
        amf_ue_ngap_id set_amf_ue_ngap_id AmfUeNgapId: AmfUeNgapId,
            "AMF-UE-NGAP-ID" "amfUeNgapId" Identities Access,
            40 "TS 38.413 clause 9.3.3.1" [+ x + x - U - - - -];
        /// Identifier of the UE at its gNB.
        ran_ue_ngap_id set_ran_ue_ngap_id RanUeNgapId: RanUeNgapId,
            "RAN-UE-NGAP-ID" "ranUeNgapId" Identities Access,
            32 "TS 38.413 clause 9.3.3.2" [+ x + x U U - - - -];
        /// AMF that serves the UE.
        guami set_guami Guami: Guami,
            "GUAMI" "guami" Identities Registration,
            48 "TS 23.003 clause 2.10.1" [+ x - - - - - - - -];

        /// Last tracking area of the UE.
        tai set_tai Tai: Tai,
            "TAI" "tai" Location Mobility,
            48 "TS 23.003 clause 19.4.2.3" [+ - - - - - U - - -];
        /// Tracking areas in which the UE moves without an update.
        registration_area set_registration_area RegistrationArea: TaiList,
            "Registration area" "registrationArea" Location Mobility,
            773 "TS 24.501 clause 9.11.3.9" [+ - - - - - U - - -];
        /// Cell.
        ncgi set_ncgi Ncgi: Ncgi,
            "NCGI" "ncgi" Location Access,
            60 "TS 38.413 clause 9.3.1.7" [+ x + x U U - - - -];
        /// gNB.
        gnb set_gnb Gnb: GlobalGnbId,
            "gNB" "globalGnbId" Location Access,
            56 "TS 38.413 clause 9.3.1.6" [+ x + x U U - - - -];
        /// Time of the location report.
        location_time set_location_time LocationTime: Seconds,
            "Location time" "ueLocationTimestamp" Location Access,
            32 "TS 29.571 clause 5.4.4.9" [+ x + x U U - - - -];
        /// Areas and technologies in which the UE may be served.
        restrictions set_restrictions Restrictions: MobilityRestrictions,
            "Mobility restrictions" "mobilityRestrictions" Location Subscriber,
            399 "TS 23.501 clause 5.3.4.1" [- - - - - - - - - -];

        /// `K_AMF` and its key set identifier.
        k_amf set_k_amf KAmf: MasterKey,
            "K_AMF" "seafData" Security Security,
            275 "TS 33.501 clause 6.2" [+ - - - - - - - - -];
        /// Keys, counts and algorithms between UE and AMF.
        nas_security set_nas_security NasSecurity: NasSecurity,
            "NAS security" "nasSecurity" Security Security,
            342 "TS 33.501 clause 6.4" [+ - - - - - - - - -];
        /// `K_gNB`, NH and NCC.
        as_security set_as_security AsSecurity: AsSecurity,
            "AS security" "asSecurity" Security Access,
            515 "TS 33.501 clause 6.9.2" [+ x + x U U - - - -];
        /// The results of authentication.
        authentication set_authentication Authentication: AuthenticationVector,
            "Authentication" "authenticationVector" Security Security,
            640 "TS 33.501 clause 6.1.3.2" [+ - - - - - - - - -];
        /// AUSF that authenticated the UE.
        ausf set_ausf Ausf: Uuid,
            "AUSF" "ausfInstanceId" Security Security,
            128 "TS 29.571 clause 5.3.2" [+ - - - - - - - - -];

        /// Subscribed slices.
        subscribed_nssai set_subscribed_nssai SubscribedNssai: LongNssai,
            "Subscribed NSSAI" "subscribedNssai" Slices Subscriber,
            517 "TS 23.501 clause 5.15.3" [- - - - - - - - - -];
        /// Slices configured in the UE.
        configured_nssai set_configured_nssai ConfiguredNssai: LongNssai,
            "Configured NSSAI" "configuredNssai" Slices Registration,
            517 "TS 23.501 clause 5.15.4" [+ x - - - - - - - -];
        /// Slices that the UE requested.
        requested_nssai set_requested_nssai RequestedNssai: Nssai,
            "Requested NSSAI" "requestedNssai" Slices Mobility,
            260 "TS 24.501 clause 9.11.3.37" [+ - - - - - U - - -];
        /// Slices that the UE may use now.
        allowed_nssai set_allowed_nssai AllowedNssai: Nssai,
            "Allowed NSSAI" "allowedNssai" Slices Mobility,
            260 "TS 24.501 clause 9.11.3.37" [+ - - - - - U - - -];

        /// Access and mobility subscription.
        subscription set_subscription Subscription: AccessSubscription,
            "Subscription" "amData" Subscription Subscriber,
            112 "TS 29.503 clause 6.1.6.2.4" [- - - - - - - - - -];
        /// Data networks that the subscriber may use.
        subscribed_dnns set_subscribed_dnns SubscribedDnns: SubscribedDnns,
            "Subscribed DNNs" "smfSelectionData" Subscription Subscriber,
            1731 "TS 29.503 clause 6.1.6.2.12" [- - - - - - - - - -];
        /// UDM that has the subscription.
        udm set_udm Udm: Uuid,
            "UDM" "udmInstanceId" Subscription Registration,
            128 "TS 29.571 clause 5.3.2" [+ x - - - - - - - -];
        /// PCF with the policies for the UE.
        pcf set_pcf Pcf: Uuid,
            "PCF" "pcfInstanceId" Subscription Registration,
            128 "TS 29.571 clause 5.3.2" [+ x - - - - - - - -];
        /// Resource of the access and mobility policy.
        am_policy set_am_policy AmPolicy: Uri,
            "AM policy association" "amPolicyAssociationUri" Subscription Registration,
            888 "TS 29.507 clause 5.3" [+ x - - - - - - - -];
        /// Resource of the policy that is sent to the UE.
        ue_policy set_ue_policy UePolicy: Uri,
            "UE policy association" "uePolicyAssociationUri" Subscription Registration,
            888 "TS 29.525 clause 5.3" [+ x - - - - - - - -];
        /// Decision of the PCF.
        policy set_policy Policy: PolicyDecision,
            "AM policy" "amPolicy" Subscription Registration,
            461 "TS 29.507 clause 5.6.2.2" [+ x - - - - - - - -];
        /// Resource of the subscription to changes of the subscriber's data.
        sdm_subscription set_sdm_subscription SdmSubscription: Uri,
            "SDM subscription" "sdmSubscriptionUri" Subscription Registration,
            888 "TS 29.503 clause 6.1.3.6" [+ x - - - - - - - -];
        /// Subscriptions to events of the UE.
        event_subscription set_event_subscription EventSubscription: EventSubscription,
            "Event subscription" "eventSubscription" Subscription Registration,
            1160 "TS 29.518 clause 6.2.6.2.2" [+ x - - - - - - - -];
        /// Radio capabilities of the UE.
        radio_capability_id set_radio_capability_id RadioCapabilityId: RadioCapabilityId,
            "UE radio capability ID" "ueRadioCapabilityId" Subscription Registration,
            80 "TS 23.003 clause 29.2" [+ x - - - - - - - -];
        /// 5GMM capabilities of the UE.
        mm_capability set_mm_capability MmCapability: MmCapability,
            "5GMM capability" "5gMmCapability" Subscription Registration,
            32 "TS 24.501 clause 9.11.3.1" [+ x - - - - - - - -];
        /// Paging cycle of the UE.
        drx set_drx Drx: DrxParameters,
            "DRX" "drxParameter" Subscription Registration,
            4 "TS 24.501 clause 9.11.3.2A" [+ x - - - - - - - -];

        /// Cause of the connection.
        cause set_cause Cause: EstablishmentCause,
            "Establishment cause" "rrcEstablishmentCause" Sessions Access,
            4 "TS 38.413 clause 9.3.1.111" [+ x + x - - - - - -];
        /// Sessions whose user plane the UE requested.
        uplink_status set_uplink_status UplinkStatus: PduSessionStatus,
            "Uplink data status" "uplinkDataStatus" Sessions Access,
            16 "TS 24.501 clause 9.11.3.57" [- x + x - - - - - -];
        /// First session.
        session_1 set_session_1 Session1: PduSession,
            "Session 1" "pduSession1" Sessions Session1,
            858 "TS 29.518 clause 6.1.6.2.37" [- x - - - - - + - x];
        /// Quality of the first session.
        session_1_qos set_session_1_qos Session1Qos: SessionQos,
            "Session 1 QoS" "pduSession1Qos" Sessions Session1,
            147 "TS 23.501 clause 5.7" [- x - - - - - + U x];
        /// Second session.
        session_2 set_session_2 Session2: PduSession,
            "Session 2" "pduSession2" Sessions Session2,
            858 "TS 29.518 clause 6.1.6.2.37" [- x - - - - - + - x];
        /// Quality of the second session.
        session_2_qos set_session_2_qos Session2Qos: SessionQos,
            "Session 2 QoS" "pduSession2Qos" Sessions Session2,
            147 "TS 23.501 clause 5.7" [- x - - - - - + U x];
        /// Third session.
        session_3 set_session_3 Session3: PduSession,
            "Session 3" "pduSession3" Sessions Session3,
            858 "TS 29.518 clause 6.1.6.2.37" [- x - - - - - + - x];
        /// Quality of the third session.
        session_3_qos set_session_3_qos Session3Qos: SessionQos,
            "Session 3 QoS" "pduSession3Qos" Sessions Session3,
            147 "TS 23.501 clause 5.7" [- x - - - - - + U x];
        /// Fourth session.
        session_4 set_session_4 Session4: PduSession,
            "Session 4" "pduSession4" Sessions Session4,
            858 "TS 29.518 clause 6.1.6.2.37" [- x - - - - - + - x];
        /// Quality of the fourth session.
        session_4_qos set_session_4_qos Session4Qos: SessionQos,
            "Session 4 QoS" "pduSession4Qos" Sessions Session4,
            147 "TS 23.501 clause 5.7" [- x - - - - - + U x];
    }
}
