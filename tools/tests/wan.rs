//! `vrdma wan`, as a user meets it. No daemon runs.

#[allow(dead_code)] // Each test file uses a part of it.
mod vrdma;

use serde_json::Value;
use vrdma::Vrdma;

/// Writes a file into the test's directory; its path.
fn file(vrdma: &Vrdma, name: &str, text: &str) -> String {
    let path = vrdma.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

#[test]
fn a_comparison_has_a_row_per_pair_with_every_algorithm() {
    let vrdma = Vrdma::new();
    let args = ["wan", "compare", "--topology", "swan", "--workload", "bigbench,tpc-h", "--jobs", "12"];
    let answer = vrdma.json(&[&args[..], &["--json"]].concat());
    let rows = answer["rows"].as_array().unwrap();
    let pairs: Vec<_> = rows.iter().map(|row| (row["topology"].as_str().unwrap(), row["workload"].as_str().unwrap())).collect();
    assert_eq!(pairs, [("swan", "bigbench"), ("swan", "tpc-h")]);
    for row in rows {
        let algorithms = row["algorithms"].as_array().unwrap();
        let names: Vec<_> = algorithms.iter().map(|one| one["policy"].as_str().unwrap()).collect();
        assert_eq!(names, ["per-flow", "multipath", "swan-mcf", "varys", "rapier", "aalo", "sincronia", "terra"]);
        for one in algorithms {
            assert!(number(one, "mean_cct_s") > 0.0 && number(one, "p95_cct_s") >= number(one, "p50_cct_s"), "{one}");
            assert!(number(one, "deadlines_met") <= number(one, "deadlines") && number(one, "deadlines") > 0.0, "{one}");
        }
        let gain = number(&algorithms[0], "mean_cct_s") / number(&algorithms[7], "mean_cct_s");
        assert!((number(row, "gain_per_flow") - gain).abs() < 1e-9, "{row}");
        assert!(row["missed"].is_array());
    }
    let text = vrdma.succeed(&args);
    for part in ["ALGORITHM", "terra", "12 jobs of each workload, seed 1", "Bars: gain at least 1.55"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Whatever a row of the JSON misses, the table names.
    let missed: usize = rows.iter().map(|row| row["missed"].as_array().unwrap().len()).sum();
    let missed = missed + usize::from(!answer["missed"].is_null());
    assert_eq!(text.matches("MISSED").count(), missed);
}

#[test]
fn the_plots_are_one_per_pair() {
    let vrdma = Vrdma::new();
    let svg = vrdma.dir().join("a.svg");
    let path = svg.to_str().unwrap();
    let args = ["wan", "compare", "--topology", "swan", "--workload", "tpc-ds,facebook", "--jobs", "5", "--plot", path];
    vrdma.succeed(&args);
    let page = std::fs::read_to_string(&svg).unwrap();
    for part in ["<svg", "tpc-ds on swan", "facebook on swan", "per-flow", "terra", "completion time, s"] {
        assert!(page.contains(part), "{part}");
    }
    vrdma.fail(&["wan", "sim", "--jobs", "3", "--plot", "/no/such/folder/a.svg"], &["/no/such/folder/a.svg"]);
}

#[test]
fn files_are_simulated_as_they_say() {
    let vrdma = Vrdma::new();
    let links = file(&vrdma, "pair.links", "site a\nsite b\nedge a b 8\n");
    // 1000 MB are 8 Gbit: one second at 8 Gbit/s. The second job waits for the first, or shares with it.
    let trace = file(&vrdma, "jobs.txt", "2 1 0\nM 1 a\nR 1 b\n1\nM R 1000\n2 2 0\nM 1 a\nR 1 b\n1\nM R 1000\n");
    let args = ["wan", "sim", "--topology", &links, "--workload", &trace, "--policy", "terra,per-flow"];
    let answer = vrdma.json(&[&args[..], &["--json"]].concat());
    let means: Vec<f64> = answer["policies"].as_array().unwrap().iter().map(|one| number(one, "mean_cct_s")).collect();
    assert!((means[0] - 1.5).abs() < 1e-6 && (means[1] - 2.0).abs() < 1e-6, "{means:?}");
    assert!(vrdma.succeed(&args).contains("decisions"));
    // Ten seconds without the only link.
    let cut = vrdma.json(&[&args[..], &["--cut", "a:b:0.5:10.5", "--json"]].concat());
    assert!((number(&cut["policies"][0], "max_cct_s") - 12.0).abs() < 1e-6, "{cut}");
    let gml = "graph [ node [ id 1 label \"a\" ] node [ id 2 label \"b\" ] edge [ source 1 target 2 bandwidth 4000 ] ]";
    let gml = file(&vrdma, "pair.gml", gml);
    let racks = file(&vrdma, "fb.txt", "4 1\n1 0 1 0 1 1:500\n");
    let args = ["wan", "sim", "--topology", &gml, "--workload", &racks, "--fb2010", "--json"];
    assert!((number(&vrdma.json(&args)["policies"][0], "mean_cct_s") - 1.0).abs() < 1e-6);
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let vrdma = Vrdma::new();
    let apart = file(&vrdma, "apart.links", "site a\nsite b\nsite c\nedge a b 8\n");
    vrdma.fail(&["wan", "sim", "--topology", &apart], &["apart.links", "No way from \"a\" to \"c\""]);
    let circle = file(&vrdma, "circle.txt", "2 1 0\nM 1 HK\nR 1 LA\n2\nM R 1\nR M 1\n");
    vrdma.fail(&["wan", "sim", "--workload", &circle], &["circle.txt", "waits for itself"]);
    vrdma.fail(&["wan", "sim", "--topology", "nowhere"], &["nowhere", "swan, gscale, att"]);
    vrdma.fail(&["wan", "sim", "--workload", "nothing"], &["nothing", "bigbench"]);
    vrdma.fail(&["wan", "sim", "--cut", "HK:FL:1:2"], &["HK", "FL"]);
    vrdma.fail(&["wan", "sim", "--cut", "HK:XX:1:2"], &["Unknown site \"XX\""]);
    for wrong in [["--policy", "magic"], ["--jobs", "0"], ["--slack", "-1"], ["--load", "0"], ["--cut", "HK:LA:2:1"]] {
        assert_eq!(vrdma.run(&[&["wan", "sim"][..], &wrong].concat()).code, 2, "{wrong:?}");
    }
    assert_eq!(vrdma.run(&["wan", "compare", "--topology", "mars"]).code, 2);
}

/// It checks all bytes by itself.
#[test]
fn the_demo_sends_its_coflow_and_leaves_nothing() {
    let vrdma = Vrdma::new();
    let report = vrdma.json(&["wan", "demo", "--json"]);
    assert_eq!(report["bytes"], 205_000_000);
    assert!(number(&report, "computed_s") > 3.5 && number(&report, "measured_s") > 3.5, "{report}");
}
