//! A file system in a file, which can lose its power: what was not synced is gone when it is mounted again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Large enough for a store of ten cycles, small enough to be made in a moment.
const BYTES: u64 = 192 * 1024 * 1024;

/// An ext4 image, mounted or not. Dropped, it is unmounted.
pub(crate) struct Image {
    file: PathBuf,
    mount: PathBuf,
    mounted: bool,
}

impl Image {
    /// Makes a file system in `folder` and mounts it.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        let (file, mount) = (folder.join("disk.img"), folder.join("disk"));
        std::fs::create_dir_all(&mount).context("making the mount point")?;
        File::create(&file).and_then(|image| image.set_len(BYTES)).context("making the image")?;
        let path = file.as_os_str();
        call(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(path)).context("making a file system")?;
        let mut image = Self { file, mount, mounted: false };
        image.mount()?;
        Ok(image)
    }

    /// Where its files are.
    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }

    pub(crate) fn mount(&mut self) -> Result<()> {
        call(Command::new("mount").args(["-o", "loop"]).arg(&self.file).arg(&self.mount))
            .context("mounting the image with a loop device, which takes root")?;
        self.mounted = true;
        Ok(())
    }

    /// Cuts the power: from now on nothing reaches the image, not even what the file system has in its log.
    pub(crate) fn cut(&self) -> Result<()> {
        let root = File::open(&self.mount).context("opening the mount point")?;
        shut_down(&root).context("shutting the file system down without its log")
    }

    pub(crate) fn unmount(&mut self) -> Result<()> {
        let mut last = Ok(());
        // A process that was just killed may still be let go of.
        for _ in 0..100 {
            last = call(Command::new("umount").arg(&self.mount));
            if last.is_ok() {
                self.mounted = false;
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        last.context("unmounting the image")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.mount).output();
        }
    }
}

/// `EXT4_IOC_SHUTDOWN`, a number that reads a flag; XFS has the same.
const SHUTDOWN: rustix::ioctl::Opcode = 0x8004_587D;
/// Do not flush the log.
const NO_LOG_FLUSH: u32 = 2;

#[allow(unsafe_code, reason = "an ioctl has no safe form")]
fn shut_down(root: &File) -> Result<()> {
    // SAFETY: the request reads one 32-bit number from the pointer that `Setter` makes, and writes nothing.
    unsafe { rustix::ioctl::ioctl(root, rustix::ioctl::Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH)) }?;
    Ok(())
}

fn call(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {}", output.status, said.trim());
    Ok(())
}
