//! The context of a UE in EPS: paper 2's Table I, variable by variable.
//!
//! The printed table has 28 rows in five categories (the paper's generator sets 27 fields in an
//! initial attach). Its page break puts `S1 TEID (DL)` and `S5 TEID` into another category; here
//! they follow the bearer's other tunnels.
//!
//! The effects of five procedures are those of the table. Table I does not have the tracking area
//! update and session management; their effects are the fields that the paper's generator sets
//! (`UE.java` of its public code). For the five procedures the generator differs from the table in
//! some fields. The table has precedence:
//!
//! - Initial attach: the generator sets a GUTI; the table does not, and adds an address, an MME,
//!   both AMBRs and the TFTs.
//! - Detach: the generator removes `K_ASME` and keeps the NAS keys; the table keeps both.
//! - Service request and S1 release: the generator sets and clears the MME's S1AP id, which is not
//!   in the table; the table adds and removes the IP address.
//! - Tracking area update: the generator also sets the TIN, which the UE keeps.

use crate::schema::schema;
use crate::value::address::UeAddress;
use crate::value::apn::Apn;
use crate::value::area::{Ecgi, Tai, TaiList};
use crate::value::bearer::{Ambr, Arp, DrbId, EpsBearerId, ErabId, FTeid, Qci, TeidPair};
use crate::value::filter::Tft;
use crate::value::identity::{CRnti, EnbUeS1apId, Gummei, Guti, Imsi};
use crate::value::security::{AsSecurity, MasterKey, NasSecurity};
use crate::value::subscriber::{AccessProfile, SubscriberProfile};

pub mod state;
pub mod procedure;
pub mod tags;

// The columns: initial attach, detach, service request, S1 release, tracking area update,
// handover, cell re-selection, session management.
schema! {
    format 1
    categories {
        /// Identities of the UE.
        UeIdentifiers "UE identifiers",
        /// Current location and tracking areas.
        Location "Location",
        /// Keys, counts and algorithms.
        Security "Security",
        /// User-plane paths.
        EpsBearers "EPS bearers",
        /// Quality of service and subscription.
        QosParameters "QoS parameters",
    }
    blocks {
        /// Subscriber: no procedure writes it.
        Profile "profile",
        /// Registration: written by the attach only.
        Registration "registration",
        /// Temporary identity and area: written by attach and tracking area update.
        Location "location",
        /// Bearer without its tunnels: written by attach and detach.
        Bearer "bearer",
        /// Tunnels of the core: written by attach, detach and session management.
        Tunnel "tunnel",
        /// Variables that are removed with the radio connection: every procedure except the
        /// tracking area update.
        Radio "radio",
    }
    variables {
        /// Identifier of the UE in its cell.
        c_rnti set_c_rnti CRnti: CRnti,
            "C-RNTI" "cRnti" UeIdentifiers Radio,
            16 "TS 36.321 clause 7.1" [+ x + x - U - -];
        /// Identifier of the UE at its eNB.
        enb_ue_s1ap_id set_enb_ue_s1ap_id EnbUeS1apId: EnbUeS1apId,
            "eNB S1AP UE ID" "enbUeS1apId" UeIdentifiers Radio,
            24 "TS 36.413 clause 9.2.3.4" [+ x + x - U - -];
        /// Temporary identity; unique.
        guti set_guti Guti: Guti,
            "GUTI" "guti" UeIdentifiers Location,
            80 "TS 23.003 clause 2.8.1" [- - - - U - - -];
        /// Permanent identity; unique.
        imsi set_imsi Imsi: Imsi,
            "IMSI" "imsi" UeIdentifiers Profile,
            60 "TS 23.003 clause 2.2" [- - - - - - - -];
        /// Address in the packet data network.
        ip set_ip Ip: UeAddress,
            "IP" "ip" UeIdentifiers Radio,
            99 "TS 24.301 clause 9.9.4.9" [+ x + x - - - -];
        /// MME that the UE is registered with.
        mme_id set_mme_id MmeId: Gummei,
            "MME ID" "mmeId" Location Registration,
            48 "TS 23.003 clause 2.8.1" [+ - - - - - - -];
        /// Last tracking area of the UE.
        tai set_tai Tai: Tai,
            "TAI" "tai" Location Location,
            40 "TS 23.003 clause 19.4.2.3" [+ - - - U - - -];
        /// Tracking areas in which the UE moves without an update.
        tai_list set_tai_list TaiList: TaiList,
            "TAI-list" "taiList" Location Location,
            645 "TS 24.301 clause 9.9.3.33" [+ - - - U - - -];
        /// Cell.
        ecgi set_ecgi Ecgi: Ecgi,
            "E-CGI" "ecgi" Location Radio,
            52 "TS 23.003 clause 19.6" [+ x + x - U - -];
        /// `K_ASME` and its key set identifier.
        k_master set_k_master KMaster: MasterKey,
            "K master" "kMaster" Security Registration,
            259 "TS 33.401 clause 6.2" [+ - - - - - - -];
        /// Keys, counts and algorithms between UE and MME.
        nas_security set_nas_security NasSecurity: NasSecurity,
            "NAS security" "nasSecurity" Security Registration,
            342 "TS 33.401 clause 7.2.4.4" [+ - - - - - - -];
        /// Keys and algorithms between UE and eNB.
        as_security set_as_security AsSecurity: AsSecurity,
            "AS security" "asSecurity" Security Radio,
            905 "TS 33.401 clause 7.2.1" [+ x + x - U - -];
        /// Subscribed access point name.
        apn set_apn Apn: Apn,
            "APN" "apn" EpsBearers Profile,
            400 "TS 23.003 clause 9.1" [- - - - - - - -];
        /// Access point name of the connection.
        apn_in_use set_apn_in_use ApnInUse: Apn,
            "APN in use" "apnInUse" EpsBearers Bearer,
            400 "TS 23.003 clause 9.1" [+ x - - - - - -];
        /// Default bearer.
        eps_bearer_id set_eps_bearer_id EpsBearerId: EpsBearerId,
            "EPS bearer ID" "epsBearerId" EpsBearers Tunnel,
            4 "TS 24.007 clause 11.2.3.1.5" [+ x - - - - - U];
        /// Identifier of the bearer on S1.
        erab_id set_erab_id ErabId: ErabId,
            "E-RAB ID" "erabId" EpsBearers Bearer,
            4 "TS 36.413 clause 9.2.1.2" [+ x - - - - - -];
        /// Radio bearer.
        drb_id set_drb_id DrbId: DrbId,
            "DRB ID" "drbId" EpsBearers Radio,
            5 "TS 36.331 clause 6.3.2" [+ x + x - U - -];
        /// Tunnel end at the S-GW, for packets from the UE.
        s1_uplink set_s1_uplink S1Uplink: FTeid,
            "S1 TEID (UL)" "s1TeidUl" EpsBearers Tunnel,
            64 "TS 29.274 clause 8.22" [+ x - - - - - U];
        /// Tunnel end at the eNB, for packets to the UE.
        s1_downlink set_s1_downlink S1Downlink: FTeid,
            "S1 TEID (DL)" "s1TeidDl" EpsBearers Radio,
            64 "TS 29.274 clause 8.22" [+ x + x - U - U];
        /// Tunnel between S-GW and P-GW.
        s5 set_s5 S5: TeidPair,
            "S5 TEID (UL/DL)" "s5Teid" EpsBearers Tunnel,
            128 "TS 29.274 clause 8.22" [+ x - - - - - U];
        /// Restrictions of the subscriber's access.
        access_profile set_access_profile AccessProfile: AccessProfile,
            "Access profile" "accessProfile" QosParameters Profile,
            82 "TS 29.272 clause 7.3.2" [- - - - - - - -];
        /// Maximum bit rate of the connection.
        apn_ambr set_apn_ambr ApnAmbr: Ambr,
            "APN-AMBR (UL/DL)" "apnAmbr" QosParameters Registration,
            64 "TS 29.274 clause 8.7" [+ - - - - - - -];
        /// Priority.
        arp set_arp Arp: Arp,
            "ARP" "arp" QosParameters Bearer,
            6 "TS 29.274 clause 8.86" [+ x - - - - - -];
        /// Maximum bit rate of the UE.
        ue_ambr set_ue_ambr UeAmbr: Ambr,
            "UE-AMBR (UL/DL)" "ueAmbr" QosParameters Registration,
            64 "TS 36.413 clause 9.2.1.20" [+ - - - - - - -];
        /// The subscription.
        subscriber_profile set_subscriber_profile SubscriberProfile: SubscriberProfile,
            "Subscriber profile" "subscriberProfile" QosParameters Profile,
            164 "TS 29.272 clause 7.3.2" [- - - - - - - -];
        /// QoS class of the default bearer.
        qci set_qci Qci: Qci,
            "QCI" "qci" QosParameters Profile,
            8 "TS 23.203 table 6.1.7" [- - - - - - - -];
        /// Packets from the UE that the bearer carries.
        tft_uplink set_tft_uplink TftUplink: Tft,
            "TFT (UL)" "tftUl" QosParameters Bearer,
            256 "TS 24.008 clause 10.5.6.12" [+ x - - - - - -];
        /// Packets to the UE that the bearer carries.
        tft_downlink set_tft_downlink TftDownlink: Tft,
            "TFT (DL)" "tftDl" QosParameters Bearer,
            256 "TS 24.008 clause 10.5.6.12" [+ x - - - - - -];
    }
}
