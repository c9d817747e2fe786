// signmirror DIR SUITE...: makes the directory DIR a Debian mirror. Each suite gets a copy of DIR/Packages, an index of
// packages for amd64, and a signed Release file (InRelease). One new key signs for all suites; DIR/keys.gpg is the
// keyring that verifies them.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: signmirror DIR SUITE...")
		os.Exit(2)
	}
	if err := sign(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "signmirror:", err)
		os.Exit(1)
	}
}

func sign(dir string, suites []string) error {
	index, err := os.ReadFile(filepath.Join(dir, "Packages"))
	if err != nil {
		return err
	}
	key, err := openpgp.NewEntity("test", "", "test@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		return err
	}
	var ring bytes.Buffer
	if err := key.Serialize(&ring); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "keys.gpg"), ring.Bytes(), 0o644); err != nil {
		return err
	}
	for _, suite := range suites {
		if err := writeSuite(filepath.Join(dir, "dists", suite), suite, index, key.PrivateKey); err != nil {
			return err
		}
	}
	return nil
}

func writeSuite(dir, suite string, index []byte, key *packet.PrivateKey) error {
	const packages = "main/binary-amd64/Packages"
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(packages)), 0o755); err != nil {
		return err
	}
	release := fmt.Sprintf("Origin: Debian\nSuite: %s\nCodename: %[1]s\nDate: %s\nArchitectures: amd64\nComponents: main\n"+
		"SHA256:\n %x %d %s\n", suite, time.Now().Add(-time.Hour).UTC().Format(time.RFC1123), sha256.Sum256(index),
		len(index), packages)
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, key, nil)
	if err == nil {
		_, err = w.Write([]byte(release))
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, packages), index, 0o644),
		os.WriteFile(filepath.Join(dir, "InRelease"), b.Bytes(), 0o644))
}
