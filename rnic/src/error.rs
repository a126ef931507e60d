//! Errors of control calls and of posting. Errors of execution are completions.

/// Why a control call was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// A value is out of range or a combination is not allowed (EINVAL).
    #[error("{0}")]
    Invalid(&'static str),
    /// The named object does not exist or belongs to another device (EINVAL).
    #[error("no such {0}")]
    NotFound(&'static str),
    /// Other objects still use this one (EBUSY).
    #[error("{0} is still in use")]
    Busy(&'static str),
    /// A limit of the device or of the core is reached (ENOMEM).
    #[error("limit reached: {0}")]
    Limit(&'static str),
    /// The device does not have this feature (EOPNOTSUPP).
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// What a device is to be promised cannot be (EINVAL).
    #[error(transparent)]
    Shares(#[from] isolation::SettingsError),
}

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue pair does not exist or its state does not allow posting.
    #[error("the queue pair's state does not allow posting")]
    State,
    /// As many requests as the queue holds are outstanding.
    #[error("the queue is full")]
    Full,
    /// Too many buffers, a bad combination, or a message over 2^31 bytes.
    #[error("invalid work request")]
    Invalid,
}
