//! Puts members into a container. The same members always give the same bytes.

use flate2::{Compression, GzBuilder};
use std::io::{self, Write as _};

use super::digest;
use super::header::{Header, Package};

/// A compressed payload is padded to a multiple of this (NEFF container facts).
const PADDING_BYTES: usize = 10_240;

/// What the writer cannot know from the members.
pub(super) struct Identity<'a> {
    pub(super) name: &'a str,
    pub(super) virtual_core_size: u32,
    pub(super) cores_requested: u8,
}

/// The container as bytes. Fails when a member name does not fit an archive entry.
pub(super) fn container(
    identity: &Identity<'_>,
    package: Package,
    members: &[(String, Vec<u8>)],
) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = tar::Header::new_ustar();
        header.set_path(name)?;
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        archive.append(&header, content.as_slice())?;
    }
    let archive = archive.into_inner()?;
    let payload = match package {
        Package::Plain => archive,
        Package::Gzip => {
            let mut stream = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
            stream.write_all(&archive)?;
            let mut stream = stream.finish()?;
            stream.resize(stream.len().next_multiple_of(PADDING_BYTES), 0);
            stream
        }
    };
    let hash = digest::field(package, &payload);
    let mut cores_per_node = [0; 64];
    cores_per_node[0] = identity.cores_requested;
    let header = Header {
        package,
        data_bytes: payload.len() as u64,
        major: 2,
        minor: 0,
        build: format!("sluice {}", env!("CARGO_PKG_VERSION")),
        hash,
        // The same model is the same model, whenever it was packed.
        uuid: std::array::from_fn(|i| hash[i]),
        name: identity.name.into(),
        cores_requested: identity.cores_requested.into(),
        cores_per_node,
        features: 0,
        virtual_core_size: identity.virtual_core_size,
    };
    let mut file = header.encode().to_vec();
    file.extend(payload);
    Ok(file)
}
