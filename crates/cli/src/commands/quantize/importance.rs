//! Importance matrices: how much each input column of a matrix matters, as measured by running a model.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use gristmill::parts::formats::Bytes;
use gristmill::parts::tensor::{DType, blocks};
use gristmill::{ByteSize, Checkpoint};

/// Values are four bytes for each input column: a model of a million million weights, with 384 experts in each of 60 layers, has
/// less than 2 GiB of them. All of a file is held while it is read.
const MOST: u64 = 4 << 30;

/// The mean square of the activations that meet each column, by the name of the matrix; for experts one row after another.
#[derive(Debug, Default)]
pub(super) struct Importance(HashMap<String, Vec<f32>>);

impl Importance {
    /// Reads a file of either kind that llama.cpp's `imatrix` writes.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub(super) fn open(path: &Path) -> Result<Importance> {
        let bytes = Bytes::map(path).with_context(|| format!("{} cannot be read", path.display()))?;
        ensure!(
            bytes.len() as u64 <= MOST,
            "{} is no importance matrix: it has {}, and one of the largest models less than {}",
            path.display(),
            ByteSize(bytes.len() as u64),
            ByteSize(MOST)
        );
        let read = if bytes.starts_with(b"GGUF") { from_gguf(bytes) } else { from_dat(&bytes) };
        let found = read.with_context(|| format!("{} is no importance matrix", path.display()))?;
        ensure!(!found.is_empty(), "{} has no entries", path.display());
        Ok(Importance(found))
    }

    /// How many matrices it knows.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The values for a matrix of so many experts (1 for a plain one) with rows of `k`; `None` when it is not known.
    ///
    /// # Errors
    /// When they are of another shape: the file was made for another model.
    pub(super) fn of(&self, name: &str, experts: usize, k: usize) -> Result<Option<&[f32]>> {
        let Some(values) = self.0.get(name) else { return Ok(None) };
        ensure!(
            Some(values.len()) == experts.checked_mul(k),
            "the importance matrix has {} values for {name}, which has {experts} x {k} columns: it was made for another model",
            values.len()
        );
        Ok(Some(values))
    }
}

/// A GGUF file: for each matrix sums of squares and how many rows were added, one count an expert.
fn from_gguf(bytes: Bytes) -> Result<HashMap<String, Vec<f32>>> {
    let file = Checkpoint::from_bytes(bytes)?;
    let floats = |name: &str| -> Result<Vec<f32>> {
        let view = file.tensor(name)?;
        ensure!(view.dtype == DType::F32, "{name} is {}, not F32", view.dtype);
        let mut values = vec![0.0; view.shape.iter().product()];
        blocks::decode(view.dtype, view.bytes, &mut values)?;
        Ok(values)
    };
    let mut out = HashMap::new();
    for name in file.tensor_names() {
        let Some(matrix) = name.strip_suffix(".in_sum2") else { continue };
        let (mut sums, counts) = (floats(name)?, floats(&format!("{matrix}.counts"))?);
        ensure!(
            !counts.is_empty() && sums.len().is_multiple_of(counts.len()),
            "{} sums and {} counts of {matrix}",
            sums.len(),
            counts.len()
        );
        let k = (sums.len() / counts.len()).max(1);
        for (sums, count) in sums.chunks_mut(k).zip(counts) {
            // An expert that no row met: all its columns are alike.
            sums.iter_mut().for_each(|s| *s = if count > 0.0 { *s / count } else { 1.0 });
        }
        out.insert(matrix.to_owned(), sums);
    }
    Ok(out)
}

/// The older kind: a count of entries, then for each its name, how many chunks were run, and so many times the means.
fn from_dat(bytes: &[u8]) -> Result<HashMap<String, Vec<f32>>> {
    let mut rest = bytes;
    let mut out = HashMap::new();
    for _ in 0..number(&mut rest, bytes.len() / 12)? {
        let len = number(&mut rest, bytes.len())?;
        let name = String::from_utf8(take(&mut rest, len)?.to_vec()).context("a name is not UTF-8")?;
        let calls = number(&mut rest, i32::MAX as usize)?.max(1) as f32;
        let values = number(&mut rest, bytes.len() / 4)?;
        let (values, _) = take(&mut rest, 4 * values)?.as_chunks::<4>();
        out.insert(name, values.iter().map(|b| f32::from_le_bytes(*b) / calls).collect());
    }
    Ok(out)
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(n).context("it ends early")?;
    *rest = left;
    Ok(taken)
}

fn number(rest: &mut &[u8], most: usize) -> Result<usize> {
    let n = i32::from_le_bytes(take(rest, 4)?.try_into()?);
    match usize::try_from(n) {
        Ok(n) if n <= most => Ok(n),
        _ => bail!("it says {n} where at most {most} can be"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill::parts::formats::gguf::{GgmlType, GgufWriter};

    fn opened(bytes: &[u8]) -> Result<Importance> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("imatrix");
        std::fs::write(&path, bytes).unwrap();
        Importance::open(&path)
    }

    #[test]
    fn both_kinds_of_files_give_means() {
        let mut dat = 1i32.to_le_bytes().to_vec();
        dat.extend(3i32.to_le_bytes());
        dat.extend(b"a.w");
        for n in [2i32, 4] {
            dat.extend(n.to_le_bytes());
        }
        [2.0f32, 4.0, 0.0, 8.0].iter().for_each(|x| dat.extend(x.to_le_bytes()));
        dat.extend(7i32.to_le_bytes()); // the chunks, and a name: not needed
        let older = opened(&dat).unwrap();
        assert_eq!(older.of("a.w", 1, 4).unwrap(), Some(&[1.0, 2.0, 0.0, 4.0][..]));
        assert_eq!(older.of("b.w", 1, 4).unwrap(), None);
        let error = older.of("a.w", 2, 4).unwrap_err().to_string();
        assert!(error.contains("4 values for a.w, which has 2 x 4 columns"), "{error}");

        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (sums, counts) = (bytes(&[3.0, 6.0, 5.0, 5.0]), bytes(&[3.0, 0.0]));
        let f32_type = GgmlType::try_from(DType::F32).unwrap();
        let mut writer = GgufWriter::new();
        writer.tensor("a.w.in_sum2", f32_type, &[2, 2], &sums).unwrap();
        writer.tensor("a.w.counts", f32_type, &[2, 1], &counts).unwrap();
        let newer = opened(&writer.to_bytes().unwrap()).unwrap();
        assert_eq!(newer.of("a.w", 2, 2).unwrap(), Some(&[1.0, 2.0, 1.0, 1.0][..]));
    }

    #[test]
    fn files_that_are_too_large_or_never_end_are_refused_unread() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MOST + 1).unwrap();
        let problem = Importance::open(file.path()).unwrap_err().to_string();
        assert!(problem.contains("is no importance matrix: it has 4.00 GiB"), "{problem}");
        #[cfg(unix)]
        assert!(
            format!("{:#}", Importance::open(Path::new("/dev/zero")).unwrap_err())
                .contains("not a regular file")
        );
    }

    #[test]
    fn damaged_files_are_refused() {
        for bytes in [&b""[..], b"GGUF", &[255; 40], &[1, 0, 0, 0, 200, 0, 0, 0, 1], &[0; 4], &[0; 200]] {
            assert!(opened(bytes).is_err(), "{bytes:?}");
        }
    }
}
