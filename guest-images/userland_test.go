package guestimages

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// An image with a userland has links for its commands and for /bin/sh. An image without one has no links.
func TestUserlandIsInTheImageThatWantsIt(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(make([]byte, 2<<20))
	testkit.OK(t, errors.Join(err, z.Close()))
	u := &Userland{names: strings.Fields("cat ls sh"), program: packed.Bytes(), licences: packed.Bytes()}
	for name, want := range map[string]bool{"ls": true, "no-such-command": false, "": false} {
		testkit.Equal(t, name, u.Has(name), want)
		testkit.Equal(t, "none has "+name, (*Userland)(nil).Has(name), false)
	}
	program := t.TempDir() + "/program"
	put(t, program, []byte("\x7fELF"))
	var sizes []int64
	for _, wanted := range []*Userland{nil, u} {
		img, err := Build(t.Context(), Options{CacheDir: t.TempDir(), Program: program, Userland: wanted})
		testkit.OK(t, err)
		sizes = append(sizes, img.Size)
		links := map[string]string{}
		r := cpio.NewReader(bytes.NewReader(testkit.Must(os.ReadFile(img.Path))(t)))
		for {
			f, err := r.Next()
			if err == io.EOF {
				break
			}
			testkit.OK(t, err)
			if f.Mode&unix.S_IFMT == unix.S_IFLNK {
				links[f.Name] = f.Linkname
			}
		}
		want := map[string]string{}
		if wanted != nil {
			want["bin/sh"] = "/bbin/sh"
			for _, n := range u.names {
				want["bbin/"+n] = "bb"
			}
		}
		if diff := cmp.Diff(want, links); diff != "" {
			t.Error(diff)
		}
	}
	if grown := sizes[1] - sizes[0]; grown < 4<<20 || grown > 5<<20 {
		t.Errorf("with the commands and their licences the image is %d bytes larger", grown)
	}
}
