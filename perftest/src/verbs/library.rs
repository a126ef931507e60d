//! Finds the verbs functions: those of a preloaded library first, else those of the system's libibverbs.

use libloading::os::unix::Library as Object;

use super::sys;

/// Why there are no verbs functions.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Neither preloaded nor installed.
    #[error(
        "there is no verbs library: start this program with `vrdma run --dev NAME -- PROGRAM`, or install libibverbs ({source})"
    )]
    Absent {
        /// What the loader said.
        source: libloading::Error,
    },
    /// A library that lacks a function of libibverbs 1.1.
    #[error("the verbs library lacks {name}: it is no libibverbs.so.1, or too old")]
    Symbol {
        /// The function.
        name: &'static str,
    },
}

macro_rules! functions {
    ($($field:ident: $name:literal as $type:ident),* $(,)?) => {
        /// The functions that the benchmarks call. The data path is not among them: it goes through the context.
        #[allow(missing_docs)]
        pub struct Library {
            $(pub $field: sys::$type,)*
            // The functions above point into it.
            object: Object,
        }

        impl Library {
            fn resolve(object: Object) -> Result<Library, LoadError> {
                Ok(Library {
                    // SAFETY: the symbol is a function of the libibverbs ABI with this very signature.
                    $($field: unsafe { object.get::<sys::$type>($name) }
                        .map(|symbol| *symbol)
                        .map_err(|_| LoadError::Symbol { name: stringify!($field) })?,)*
                    object,
                })
            }
        }
    };
}

functions! {
    get_device_list: b"ibv_get_device_list" as GetDeviceList,
    free_device_list: b"ibv_free_device_list" as FreeDeviceList,
    get_device_name: b"ibv_get_device_name" as GetDeviceName,
    open_device: b"ibv_open_device" as OpenDevice,
    close_device: b"ibv_close_device" as CloseDevice,
    query_port: b"ibv_query_port" as QueryPort,
    query_gid: b"ibv_query_gid" as QueryGid,
    alloc_pd: b"ibv_alloc_pd" as AllocPd,
    dealloc_pd: b"ibv_dealloc_pd" as DeallocPd,
    reg_mr: b"ibv_reg_mr" as RegMr,
    dereg_mr: b"ibv_dereg_mr" as DeregMr,
    create_cq: b"ibv_create_cq" as CreateCq,
    destroy_cq: b"ibv_destroy_cq" as DestroyCq,
    create_qp: b"ibv_create_qp" as CreateQp,
    modify_qp: b"ibv_modify_qp" as ModifyQp,
    destroy_qp: b"ibv_destroy_qp" as DestroyQp,
    wc_status_str: b"ibv_wc_status_str" as WcStatusStr,
}

impl Library {
    /// Looks in what the process has loaded already (`LD_PRELOAD`), then for `libibverbs.so.1`.
    pub fn load() -> Result<Library, LoadError> {
        let loaded = Object::this();
        // SAFETY: only the presence of the symbol is asked for.
        if unsafe { loaded.get::<sys::GetDeviceList>(b"ibv_get_device_list") }.is_ok() {
            return Library::resolve(loaded);
        }
        // SAFETY: libibverbs has no unusual initialisers; it is a system library that any RDMA program loads.
        let system = unsafe { Object::new("libibverbs.so.1") }.map_err(|source| LoadError::Absent { source })?;
        Library::resolve(system)
    }
}

impl Library {
    /// `ibv_reg_dmabuf_mr`, which libraries older than rdma-core 34 do not have.
    pub fn reg_dmabuf_mr(&self) -> Result<sys::RegDmabufMr, LoadError> {
        // SAFETY: a function of the libibverbs ABI with this very signature.
        let found = unsafe { self.object.get::<sys::RegDmabufMr>(b"ibv_reg_dmabuf_mr") };
        found.map(|symbol| *symbol).map_err(|_| LoadError::Symbol { name: "ibv_reg_dmabuf_mr" })
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}
