//! The model of PCIe with its built-in parameters: what the table of the core saves, and what the others meet.

use fabric::pcie::Scheme;
use fabric::pcie::dma::{Outcome, Point};
use fabric::pcie::params::Params;
use fabric::pcie::sweep::{Over, points};

/// What comes out of a scheme over a sweep, in the order of its values.
fn sweep(params: &Params, over: Over, scheme: Scheme) -> Vec<Outcome> {
    let points = points(params).into_iter().filter(|(of, point)| *of == over && point.scheme == scheme);
    points.map(|(_, point)| point.run(params)).collect()
}

fn share_at(outcomes: &[Outcome], over: Over, value: u64) -> f64 {
    outcomes.iter().find(|outcome| over.of(&outcome.point) == value).expect("the sweep has it").share
}

#[test]
fn the_cliff_of_the_atc_is_not_ours() {
    let params = Params::default();
    let [ats, ours] = [Scheme::Ats, Scheme::Emtt].map(|scheme| sweep(&params, Over::WorkingSet, scheme));
    let held = params.nic.atc_entries * params.iommu.page_bytes;
    for outcome in &ats {
        let fits = outcome.point.working_set <= held;
        assert_eq!(outcome.atc_misses_per_mib == 0.0, fits, "{outcome:?}");
        assert!(!fits || outcome.share > 0.99, "{outcome:?}");
    }
    let beyond = share_at(&ats, Over::WorkingSet, 1 << 34);
    assert!(beyond < 0.8, "{beyond}");
    for outcome in ours {
        assert!(
            outcome.share > 0.99 && outcome.iommu_visits_per_mib == 0.0 && outcome.atc_misses_per_mib == 0.0,
            "{outcome:?}"
        );
        assert_eq!(outcome.hops, 2.0);
    }
}

#[test]
fn the_limit_of_functions_is_not_ours() {
    let params = Params::default();
    let lut = params.switch.lut_bdfs;
    for outcome in sweep(&params, Over::Devices, Scheme::Ats) {
        let Outcome { point, hops, direct_devices, .. } = outcome;
        assert_eq!(direct_devices, point.devices.min(lut));
        assert_eq!(hops > 2.0, point.devices > lut, "{outcome:?}");
        assert_eq!(outcome.share > 0.99, point.devices <= 3 * lut / 2, "{outcome:?}");
    }
    for outcome in sweep(&params, Over::Devices, Scheme::Emtt) {
        assert_eq!((outcome.direct_devices, outcome.hops), (outcome.point.devices, 2.0));
        assert!(outcome.share > 0.99, "{outcome:?}");
    }
}

/// Every packet goes to the IOMMU and through the root complex, whatever the working set.
#[test]
fn what_bounces_gets_what_the_root_complex_forwards() {
    let params = Params::default();
    let (payload, overhead) = (f64::from(params.link.tlp_payload_bytes), f64::from(params.link.tlp_overhead_bytes));
    let most = params.root.peer_gbps * payload / (payload + overhead);
    for outcome in sweep(&params, Over::WorkingSet, Scheme::HostBounce) {
        assert!((outcome.gbps / most - 1.0).abs() < 0.02, "{most} {outcome:?}");
        assert_eq!((outcome.hops, outcome.direct_devices), (4.0, 0));
        assert_eq!(outcome.iommu_visits_per_mib, 1_048_576.0 / payload);
    }
}

/// What the cliff is made of: so many questions at once, each of which goes up, is answered after a walk, and comes back.
#[test]
fn beyond_the_atc_questions_set_the_rate() {
    let params = Params::parse("[nic]\natc_entries = 1\n[iommu]\ntlb_entries = 1").expect("sound");
    let point = Point { scheme: Scheme::Ats, devices: 1, working_set: 1 << 34, message: 4096 };
    let outcome = point.run(&params);
    let question_ns = (4 * params.link.hop_ns + params.iommu.walk_ns) as f64;
    // As many walks at once as there are walkers, but questions are on their way longer than that.
    let gbps = params.nic.ats_requests as f64 * 4096.0 * 8.0 / question_ns;
    assert!((outcome.gbps / gbps - 1.0).abs() < 0.02, "{gbps} {outcome:?}");
    // One per page, but for those of the first and last pieces.
    assert!((outcome.atc_misses_per_mib / 256.0 - 1.0).abs() < 0.02, "{outcome:?}");
    assert_eq!(outcome, point.run(&params), "the same again");
}

/// Small messages cost a question each, but carry less.
#[test]
fn small_messages_feel_misses_most() {
    let params = Params::default();
    let [ats, ours] = [Scheme::Ats, Scheme::Emtt].map(|scheme| sweep(&params, Over::Message, scheme));
    let ratio = |bytes| share_at(&ats, Over::Message, bytes) / share_at(&ours, Over::Message, bytes);
    assert!(ratio(512) < ratio(1024) && ratio(1024) < ratio(2048) && ratio(2048) < ratio(4096), "{ats:?}");
    assert!(ratio(512) < 0.25, "{}", ratio(512));
    assert!(share_at(&ours, Over::Message, 1 << 20) > 0.99);
}
