//! Counters: of a device, with the names of the kernel's `rdma_rxe` where it has them, and of packets that belong to no device's
//! queue pair.

macro_rules! counters {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $field:ident,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$inner])* pub $field: u64,)*
        }

        impl $name {
            /// Names and values, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

counters! {
    /// What one device did since it was created.
    Counters {
        /// Packets handed out for sending.
        sent_pkts,
        /// Packets that reached a queue pair.
        rcvd_pkts,
        /// Bytes of packets handed out, BTH to ICRC.
        sent_bytes,
        /// Bytes of packets that reached a queue pair, BTH to ICRC.
        rcvd_bytes,
        /// Data packets handed out of connections that use many paths, those sent again included.
        sent_spray_pkts,
        /// Times that a connection left a path from which nothing came back.
        left_path,
        /// Times that a connection waited, as the peer had asked it to slow down or it had asked itself to.
        paused_for_link,
        /// Bytes that this device's requests moved over the local path.
        local_bytes,
        /// Messages that this device's requests moved over the local path.
        local_messages,
        /// Request packets that had been executed before.
        duplicate_request,
        /// Request packets beyond a gap.
        out_of_seq_request,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// NAKs for a sequence error received.
        rcvd_seq_err,
        /// NAKs for a sequence error sent.
        send_seq_err,
        /// Other NAKs received.
        rcvd_nak_err,
        /// Other NAKs sent.
        send_nak_err,
        /// Responses missing before a later one (implied NAK).
        implied_nak_err,
        /// Acknowledgement timeouts.
        ack_timeout,
        /// Times that a queue pair went back to send again.
        completer_retry_err,
        /// Requests that ended with `RetryExceededError`.
        retry_exceeded_err,
        /// Requests that ended with `RnrRetryExceededError`.
        retry_rnr_exceeded_err,
        /// Requests that failed for a local reason.
        send_err,
        /// Congestion notification packets received.
        rcvd_cnp,
        /// Packets received with a congestion mark, in the IP header or the BTH.
        rcvd_ecn,
        /// Responses that fit no outstanding request.
        stray_response,
        /// Replays older than the responder's resources, dropped.
        lost_resource,
        /// Datagrams dropped for a wrong Q_Key.
        bad_qkey,
        /// Datagrams and messages of unreliable connections dropped because no receive was posted.
        dropped_no_receive,
        /// The same dropped because they were longer than the receive; datagrams also where they were to be sent, if longer
        /// than the port's MTU.
        dropped_too_long,
        /// Messages of unreliable connections dropped because they were invalid, or not allowed to touch what they named.
        dropped_refused,
        /// Requests of connections refused for their key, its protection domain, rights or range.
        access_refused,
        /// Regions whose memory was taken back while they were registered.
        revoked_regions,
        /// Management datagrams dropped because nobody took those before.
        dropped_mads,
    }
}

counters! {
    /// Packets dropped before they reached a queue pair.
    DropCounters {
        /// Too short, wrong lengths, wrong transport version, unknown opcode.
        malformed,
        /// The invariant CRC does not fit.
        icrc,
        /// Not the default partition.
        bad_pkey,
        /// The opcode belongs to a service that the queue pair does not offer.
        bad_service,
        /// No such queue pair at this device.
        unknown_qp,
        /// The addresses are not those of the connection.
        bad_address,
        /// The queue pair's state does not allow reception.
        bad_state,
        /// The device or its port is down.
        port_down,
    }
}
