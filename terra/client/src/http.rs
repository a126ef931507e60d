//! One call to the controller: a connection, a request, an answer, within bounds of time and length.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use terra::JobId;
use tokio::net::UnixStream;

/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// Time for one call. Large jobs take the controller some tenths of a second.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers there, or this user may not open the socket.
    #[error("No controller can be reached at {}: {reason}. Start one with `vrdma wan controller`", socket.display())]
    Unreachable {
        /// Where.
        socket: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The connection broke, timed out or carried something else than the protocol. Whether the call was carried out is not known.
    #[error("The controller at {} gave no proper answer: {reason}", socket.display())]
    Broken {
        /// Where.
        socket: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The controller said no; nothing has changed.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Why, in the controller's words.
        message: String,
    },
    /// The controller knows nothing of the job.
    #[error("The controller knows no job {0}: it never was, was cancelled, or ended long ago")]
    UnknownJob(JobId),
    /// The system gives this process no means for connections.
    #[error("No connection can be made from this process: {0}")]
    Runtime(std::io::Error),
}

/// How the API reports errors.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

#[derive(Debug)]
pub(crate) struct Http {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Http {
    pub fn new(socket: PathBuf) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ClientError::Runtime)?;
        Ok(Self { socket, runtime })
    }

    /// Sends `body` as JSON, if there is one, and reads the answer.
    pub fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<A, ClientError> {
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| self.broken(error))?.unwrap_or_default();
        let exchange = async { tokio::time::timeout(TIMEOUT, self.exchange(method, path, body)).await };
        let answer = self.runtime.block_on(exchange);
        let (status, bytes) =
            answer.unwrap_or_else(|_| Err(self.broken(format!("nothing came within {} s", TIMEOUT.as_secs()))))?;
        if (200..300).contains(&status) {
            return serde_json::from_slice(&bytes).map_err(|error| self.broken(error));
        }
        let message = serde_json::from_slice::<Problem>(&bytes).map_or_else(
            |_| format!("HTTP status {status}: {}", String::from_utf8_lossy(&bytes).trim()),
            |problem| problem.error,
        );
        Err(ClientError::Refused { status, message })
    }

    async fn exchange(&self, method: Method, path: &str, body: Vec<u8>) -> Result<(u16, Bytes), ClientError> {
        let unreachable = |reason| ClientError::Unreachable { socket: self.socket.clone(), reason };
        let stream = UnixStream::connect(&self.socket).await.map_err(unreachable)?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(error))?;
        // It ends when the sender is dropped.
        tokio::spawn(connection);
        let request =
            Request::builder().method(method).uri(path).header("host", "wan").header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| self.broken(error))?;
        let response = sender.send_request(request).await.map_err(|error| self.broken(error))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| self.broken(error))?;
        Ok((status, body.to_bytes()))
    }

    fn broken(&self, reason: impl ToString) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), reason: reason.to_string() }
    }
}
