//! The library among other preloaded ones: an interposer that asks with `dlvsym` for the function behind it must get that function.

use std::path::{Path, PathBuf};
use std::process::Command;

const INTERPOSER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
long labs(long value)
{
    long (*next)(long) = (long (*)(long))dlvsym(RTLD_NEXT, "labs", "GLIBC_2.2.5");
    if (!next || next == labs)
        abort();
    return next(value) + 1;
}
"#;

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    void *none = dlvsym(RTLD_DEFAULT, "ibv_no_such_verb", "IBVERBS_1.1");
    void *verb = dlvsym(RTLD_DEFAULT, "ibv_open_device", "IBVERBS_1.1");
    void *plain = dlsym(RTLD_DEFAULT, "ibv_open_device");
    printf("%ld %d %d\n", labs(-argc - 40), none == NULL, verb != NULL && verb == plain);
    return 0;
}
"#;

fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let places = [folder, folder.parent().unwrap()].map(|folder| folder.join("libvrdma_verbs.so"));
    places.into_iter().find(|path| path.exists()).expect("the library lies beside the test")
}

fn compile(source: &str, name: &str, folder: &Path, options: &[&str]) -> PathBuf {
    let (text, target) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&text, source).unwrap();
    let status =
        Command::new("cc").args(options).arg("-fno-builtin").arg(&text).arg("-o").arg(&target).arg("-ldl").status().unwrap();
    assert!(status.success(), "cc {name}");
    target
}

#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn an_interposer_finds_the_function_behind_it() {
    let folder = std::env::temp_dir().join(format!("vrdma-loader-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let interposer = compile(INTERPOSER, "interposer.so", &folder, &["-shared", "-fPIC"]);
    let program = compile(PROGRAM, "program", &folder, &[]);
    let preload = format!("{}:{}", library().display(), interposer.display());
    let output = Command::new(program).env("LD_PRELOAD", preload).env_remove("VRDMA_SOCKET").output().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "42 1 1\n", "41 with one added, no unknown verb, our verb");
}
