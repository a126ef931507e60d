//! Holds our structs against the C headers of rdma-core: a C compiler is asked whether sizes and offsets are what we say.
//!
//! The installed headers are asked, and those in the folders that `VRDMA_VERBS_HEADERS` names (with `:` between them), each with
//! `infiniband/verbs.h` in it.

use super::Layout;
use super::device::{
    ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, verbs_context,
};
use super::extended::{
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_parent_domain_init_attr, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_values_ex,
};
use super::object::{
    ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_cq, ibv_global_route, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr,
};
use super::work::{ibv_mw_bind, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a struct may differ between versions of rdma-core.
#[derive(Clone, Copy, PartialEq)]
enum Grows {
    Not,
    /// New fields come last: older versions are shorter.
    AtTheEnd,
    /// New fields come first: offsets count back from `context`.
    AtTheFront,
}

/// C assertions for one struct.
fn assertions<T: Layout>(grows: Grows) -> String {
    let (name, size) = (T::NAME, T::SIZE);
    let mut text = match grows {
        Grows::Not => format!("_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");\n"),
        _ => format!("_Static_assert(sizeof(struct {name}) <= {size}, \"{name}\");\n"),
    };
    let context = T::FIELDS.iter().find(|(field, _)| *field == "context").map_or(0, |(_, offset)| *offset);
    for (field, offset) in T::FIELDS.iter().filter(|(field, _)| !field.is_empty()) {
        let here = format!("offsetof(struct {name}, {field})");
        let _ = match grows {
            Grows::AtTheFront => writeln!(
                text,
                "_Static_assert(offsetof(struct {name}, context) - {here} == {}, \"{name}.{field}\");",
                context - offset
            ),
            _ => writeln!(text, "_Static_assert({here} == {offset}, \"{name}.{field}\");"),
        };
    }
    text
}

macro_rules! all {
    ($($type:ty $(: $grows:ident)?),* $(,)?) => {
        [$(assertions::<$type>(all!(@grows $($grows)?))),*].concat()
    };
    (@grows) => { Grows::Not };
    (@grows $grows:ident) => { Grows::$grows };
}

fn program() -> String {
    let asserted = all![
        ibv_device, ibv_context_ops, ibv_context, verbs_context: AtTheFront, ibv_device_attr, ibv_device_attr_ex,
        ibv_port_attr: AtTheEnd, ibv_gid_entry, ibv_pd, ibv_mr, ibv_mw, ibv_mw_bind, ibv_comp_channel, ibv_cq, ibv_qp, ibv_qp_cap, ibv_qp_init_attr,
        ibv_global_route, ibv_ah_attr, ibv_qp_attr, ibv_async_event, ibv_sge, ibv_send_wr, ibv_recv_wr, ibv_wc, ibv_cq_ex,
        ibv_cq_init_attr_ex, ibv_qp_init_attr_ex, ibv_qp_ex: AtTheEnd, ibv_data_buf, ibv_mw_bind_info,
        ibv_parent_domain_init_attr, ibv_values_ex,
    ];
    format!("#include <stddef.h>\n#include <infiniband/verbs.h>\n{asserted}")
}

/// What a C compiler says of a program with the headers in this folder.
fn compile(program: &str, headers: &Path) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("vrdma-layout-{}.c", std::process::id()));
    std::fs::write(&file, program).expect("a temporary file");
    let output = Command::new("cc").args(["-fsyntax-only", "-I"]).arg(headers).arg(&file).output().expect("cc can be started");
    let _ = std::fs::remove_file(&file);
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn structs_are_those_of_the_c_headers() {
    if skip::missing_program(&["cc"]) {
        return;
    }
    let more = std::env::var_os("VRDMA_VERBS_HEADERS").unwrap_or_default();
    let folders: Vec<PathBuf> = [PathBuf::from("/usr/include")].into_iter().chain(std::env::split_paths(&more)).collect();
    let present: Vec<_> = folders.iter().filter(|folder| folder.join("infiniband/verbs.h").is_file()).collect();
    if present.is_empty() {
        return skip::skip("not installed: libibverbs-dev (./test as root installs it)");
    }
    let program = program();
    for headers in present {
        if let Err(complaint) = compile(&program, headers) {
            panic!("headers in {}:\n{complaint}", headers.display());
        }
        // The check itself has to notice a wrong offset.
        let wrong = program.replacen("status) == 132", "status) == 136", 1);
        assert_ne!(wrong, program);
        assert!(compile(&wrong, headers).is_err(), "a wrong offset passed");
    }
}
