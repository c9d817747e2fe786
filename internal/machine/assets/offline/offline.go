// Package offline implements the archive of `vnic cache export` and `vnic cache import`, which has the program and
// files of the cache.
//
// The archive is a plain tar of three members, in this order:
//
//	manifest.json   a Manifest, the list of the other members' contents
//	vnic.gz         the program, packed by gzip: a minimal Debian has tar and gzip, but neither zstd nor xz
//	files.tar.zst   the cache's files: a tar, packed by zstd, in the manifest's order
//
// All files are regular. Read trusts no input: it refuses names that are not local or not in ascending order,
// and sizes over a limit, and checks SHA-256, which detects damage but proves no origin. The package writes no files:
// Read passes their contents to its caller, and Write returns the archive.
//
// The package is not API (README, Stability).
package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
)

// Format is the version of the archive's format that this package reads and writes.
const Format = 1

// Program is the name of the packed program in the archive.
const Program = "vnic.gz"

const (
	manifestName = "manifest.json"
	filesName    = "files.tar.zst"
)

// Limits of an archive.
const (
	MaxManifest = 4 << 20   // bytes of manifest.json
	MaxFiles    = 10_000    // in files.tar.zst
	MaxPath     = 512       // bytes of a file's path in the archive
	MaxFile     = 256 << 20 // bytes of one file, and of the packed program
	MaxTotal    = 1 << 30   // bytes of all unpacked files together, and of files.tar.zst
)

// Errors of Read.
var (
	ErrFormat  = errors.New("no archive of vnic cache export")
	ErrVersion = errors.New("an archive of another version of the format")
	ErrDamaged = errors.New("the archive is damaged or cut short")
)

// Manifest lists an archive's contents.
type Manifest struct {
	Format  int      `json:"format"`
	Vnic    string   `json:"vnic"` // version of the program
	For     []string `json:"for"`  // commands of vnic for which the archive was made
	Program File     `json:"program"`
	Files   []File   `json:"files"` // in ascending order of path
	// Trees are the importer's: this package does not read them.
	Trees json.RawMessage `json:"trees"`
}

// File is a file of the cache in the archive, or the packed program.
type File struct {
	Path   string `json:"path"` // below the cache; of the packed program: Program
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`         // hexadecimal, lower case
	Exec   bool   `json:"exec,omitempty"` // mode 0755, else 0644
}

// Mode returns the file's mode.
func (f *File) Mode() fs.FileMode {
	if f.Exec {
		return 0o755
	}
	return 0o644
}

// Total returns the bytes of all Files together.
func (m *Manifest) Total() (n int64) {
	for i := range m.Files {
		n += m.Files[i].Size
	}
	return n
}

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (m *Manifest) check() error {
	switch {
	case m.Format != Format:
		return fmt.Errorf("%w: format %d, this vnic reads %d: use the vnic that is in it (tar xf FILE %s)", ErrVersion,
			m.Format, Format, Program)
	case len(m.Files) > MaxFiles:
		return fmt.Errorf("%w: %d files, at most %d", ErrFormat, len(m.Files), MaxFiles)
	case m.Program.Path != Program:
		return fmt.Errorf("%w: the program is %q", ErrFormat, m.Program.Path)
	}
	if err := m.Program.check(); err != nil {
		return err
	}
	total := int64(0)
	for i := range m.Files {
		f := &m.Files[i]
		if err := f.check(); err != nil {
			return err
		}
		if i > 0 && f.Path <= m.Files[i-1].Path {
			return fmt.Errorf("%w: %q stands behind %q", ErrFormat, f.Path, m.Files[i-1].Path)
		}
		if f.Size > MaxTotal-total {
			return fmt.Errorf("%w: its files have more than %d bytes", ErrFormat, int64(MaxTotal))
		}
		total += f.Size
	}
	return nil
}

func (f *File) check() error {
	switch {
	case len(f.Path) > MaxPath || f.Path == "." || !fs.ValidPath(f.Path):
		return fmt.Errorf("%w: %.80q is no local path", ErrFormat, f.Path)
	case f.Size < 0 || f.Size > MaxFile:
		return fmt.Errorf("%w: %s of %d bytes", ErrFormat, f.Path, f.Size)
	case !digest.MatchString(f.SHA256):
		return fmt.Errorf("%w: %s has no SHA-256", ErrFormat, f.Path)
	}
	return nil
}
