//! `vrdma sim`, as a user meets it. No daemon runs.

#[allow(dead_code)] // Each test file uses a part of it.
mod vrdma;

use serde_json::Value;
use vrdma::Vrdma;

const SCENARIO: &str = "seed = 5\n[topology]\nleaves = 2\nspines = 2\nhosts_per_leaf = 3\n[workload]\nbytes = 100000\n";

/// Writes a file into the test's directory; its path.
fn file(vrdma: &Vrdma, name: &str, text: &str) -> String {
    let path = vrdma.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs what must fail, with all of `parts` in its one line of explanation.
fn refused(vrdma: &Vrdma, args: &[&str], parts: &[&str]) {
    let output = vrdma.run(args);
    assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
    for part in parts {
        assert!(output.stderr.contains(part), "{part} in {}", output.stderr);
    }
}

/// Runs with `--json`; the object, and what went to standard error.
fn json(vrdma: &Vrdma, args: &[&str]) -> (Value, String) {
    let output = vrdma.run(args);
    assert_eq!(output.code, 0, "{}", output.stderr);
    (serde_json::from_str(&output.stdout).unwrap(), output.stderr)
}

#[test]
fn a_scenario_runs_and_says_its_seed_first() {
    let vrdma = Vrdma::new();
    let path = file(&vrdma, "a.toml", SCENARIO);
    let text = vrdma.succeed(&["sim", "run", &path]);
    assert_eq!(text.lines().next(), Some("seed 5"));
    for part in ["6 hosts, 4 switches", "DONE", "leaf to spine", "p99[usec]"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(vrdma.succeed(&["sim", "run", &path]), text, "the same again");
    let (report, stderr) = json(&vrdma, &["sim", "run", &path, "--json", "--seed", "6"]);
    assert_eq!(stderr, "seed 6\n");
    assert_eq!(
        (report["seed"].as_u64(), report["succeeded"].as_u64(), report["violation_count"].as_u64()),
        (Some(6), Some(6), Some(0))
    );
    assert!(report["completion_us"]["p50"].as_f64().unwrap() > 8.0);
}

#[test]
fn several_seeds_run_at_once_and_come_in_order() {
    let vrdma = Vrdma::new();
    let path = file(&vrdma, "a.toml", SCENARIO);
    let (reports, _) = json(&vrdma, &["sim", "run", &path, "--json", "--runs", "5"]);
    let seeds: Vec<u64> = reports.as_array().unwrap().iter().map(|report| report["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [5, 6, 7, 8, 9]);
    let (alone, _) = json(&vrdma, &["sim", "run", &path, "--json", "--seed", "8"]);
    assert_eq!(reports[3], alone);
    assert_eq!(vrdma.succeed(&["sim", "run", &path, "--runs", "3"]).lines().count(), 5);
}

#[test]
fn the_report_is_a_page_with_plots() {
    let vrdma = Vrdma::new();
    let path = file(&vrdma, "a.toml", SCENARIO);
    let html = vrdma.dir().join("a.html");
    vrdma.succeed(&["sim", "run", &path, "--report", html.to_str().unwrap()]);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() == 3);
    refused(&vrdma, &["sim", "run", &path, "--report", "/no/such/folder/a.html"], &["/no/such/folder/a.html"]);
}

#[test]
fn a_trace_lies_beside_its_scenario() {
    let vrdma = Vrdma::new();
    let trace = "[topology]\nleaves = 1\nspines = 1\nhosts_per_leaf = 3\n[workload]\npattern = \"trace\"\nfile = \"t.csv\"\n";
    let path = file(&vrdma, "a.toml", trace);
    refused(&vrdma, &["sim", "run", &path], &["workload.file", "t.csv", "No such file"]);
    file(&vrdma, "t.csv", "0,0,1,5000\n0,1,2,5000,0\n");
    let (report, _) = json(&vrdma, &["sim", "run", &path, "--json"]);
    assert_eq!(report["succeeded"], 2);
    file(&vrdma, "t.csv", "0,0,1,5000\n0,1,9,5000,0\n");
    refused(&vrdma, &["sim", "run", &path], &["a.toml", "line 2 of the trace", "dst is \"9\""]);
}

#[test]
fn the_way_to_gpus_is_modelled_and_drawn() {
    let vrdma = Vrdma::new();
    let path = file(&vrdma, "p.toml", "[sweep]\nworking_set_mib = [16, 1024]\nmessage_bytes = [65536]\ndevices = [1, 256]\n");
    let svg = vrdma.dir().join("p.svg");
    let (answer, _) = json(&vrdma, &["sim", "pcie", &path, "--json", "--plot", svg.to_str().unwrap()]);
    assert_eq!((answer["modelled"].as_bool(), answer["parameters"]["switch"]["lut_bdfs"].as_u64()), (Some(true), Some(32)));
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5 * 3);
    let share = |n: usize| rows[n]["share"].as_f64().unwrap();
    assert_eq!((rows[4]["scheme"].as_str(), rows[4]["working_set"].as_u64()), (Some("ats"), Some(1 << 30)));
    assert!(share(1) > 0.99 && share(4) < 0.9 && share(5) > 0.99, "{rows:?}");
    let plot = std::fs::read_to_string(svg).unwrap();
    assert_eq!((plot.matches("(modelled)").count(), plot.matches("host bounce").count()), (3, 3));
    let text = vrdma.succeed(&["sim", "pcie", &path]);
    assert_eq!(text.lines().filter(|line| line.contains("eMTT")).count(), 5);
    assert!(text.contains("Modelled: a NIC of 400 Gb/s"));
    refused(&vrdma, &["sim", "pcie", &file(&vrdma, "w.toml", "[nic]\nspeed = 1\n")], &["w.toml", "speed"]);
}

/// The picture in the README is what the program draws.
#[test]
fn the_picture_of_the_way_to_gpus_is_of_today() {
    let vrdma = Vrdma::new();
    let svg = vrdma.dir().join("p.svg");
    vrdma.succeed(&["sim", "pcie", "--plot", svg.to_str().unwrap()]);
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../fabric/pcie.svg");
    assert!(
        std::fs::read(svg).unwrap() == std::fs::read(kept).unwrap(),
        "draw it again: vrdma sim pcie --plot fabric/pcie.svg"
    );
}

#[test]
fn experiments_have_their_figures_and_a_picture() {
    let vrdma = Vrdma::new();
    let svg = vrdma.dir().join("i.svg");
    let (answer, _) = json(&vrdma, &["sim", "isolation", "e1", "--json", "--plot", svg.to_str().unwrap()]);
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((row["id"].as_str(), row["meets_bar"].as_bool()), (Some("E1"), Some(true)), "{row}");
        let figures = ["alone", "off", "justitia", "ours", "published_off", "published_justitia"];
        assert!(figures.iter().all(|key| row[key].is_f64()), "{row}");
    }
    assert_eq!(std::fs::read_to_string(svg).unwrap().matches("(modelled)").count(), 3);
    refused(&vrdma, &["sim", "isolation", "E99"], &["E1, E2", "E21"]);
}

#[test]
fn a_search_says_what_repeats_it() {
    let vrdma = Vrdma::new();
    let args = ["sim", "isolation", "--search", "2", "--seed", "3"];
    let text = vrdma.succeed(&args);
    assert!(text.starts_with("seed 3\n") && text.contains(" of 2 cases"), "{text}");
    assert_eq!(vrdma.succeed(&args), text, "the same again");
    let (answer, _) = json(&vrdma, &["sim", "isolation", "--search", "2", "--seed", "3", "--json"]);
    assert_eq!((answer["seed"].as_u64(), answer["cases"].as_u64()), (Some(3), Some(2)));
}

#[test]
fn what_is_wrong_is_named() {
    let vrdma = Vrdma::new();
    for (text, parts) in [
        ("[topology]\nleafs = 2\n", &["a.toml", "leafs"][..]),
        ("[topology]\nleaves = 2\n", &["a.toml", "topology.spines is missing"]),
        ("[workload]\nbytes = \"much\"\n", &["a.toml", "bytes", "line 2"]),
        (
            "seed = 1\n[topology]\nk = 4\nkind = \"fat-tree\"\nplanes = 99\n",
            &["a.toml", "topology.planes is 99", "from 1 to 8"],
        ),
    ] {
        let path = file(&vrdma, "a.toml", text);
        refused(&vrdma, &["sim", "run", &path], parts);
    }
    let dir = vrdma.dir();
    refused(&vrdma, &["sim", "run", dir.to_str().unwrap()], &["it is not a file"]);
    refused(&vrdma, &["sim", "run", "/dev/zero"], &["it is not a file"]);
    let long = file(&vrdma, "long.toml", &"#\n".repeat(1 << 20));
    refused(&vrdma, &["sim", "run", &long], &["longer than"]);
    std::fs::write(dir.join("bytes.toml"), [0xFF, 0xFE]).unwrap();
    refused(&vrdma, &["sim", "run", dir.join("bytes.toml").to_str().unwrap()], &["bytes.toml"]);
}
