package load

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/cmd/vnic/internal/webfile"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/loader"
)

// Options are the flags of `vnic load`.
type Options struct {
	guests.Options

	URL         string // "": a file of the command's own server
	Format      string // Raw, Records or Safetensors; "": by the URL's end
	Header      http.Header
	Size        uint64 // of the own server's file
	Connections int
	Range       uint64 // bytes of a request
	Record      uint64 // bytes
	Batch       uint64 // records
	Prefetch    int    // batches
	Skip        uint64 // bytes before the first record
	Step        time.Duration
	SHA256      string // of what is to land, as hex; "": not known
	Timeout     time.Duration
	Retry       time.Duration

	url  *url.URL
	room uint64 // of GPU memory, for data
}

// Formats of files.
const (
	Raw         = "raw"
	Records     = "records"
	Safetensors = "safetensors"
)

// Defaults are the options without a flag, but for a seed.
func Defaults() Options {
	o := Options{Options: guests.Defaults(), Size: 64 << 20, Connections: 4,
		Range: 1 << 20, Record: 64 << 10, Batch: 16, Prefetch: 4,
		Timeout: time.Duration(limits.Silence), Retry: time.Duration(limits.ServerBack)}
	o.Guests, o.Gateway = 1, &lab.GatewayFlags{}
	return o
}

const (
	maxConnections = 64
	maxRange       = 1 << 30
	maxSize        = 1 << 40
	maxPrefetch    = 1 << 16
	maxHeader      = 16 << 10
)

// Complete sets what follows from the rest, and says what is wrong.
func (o *Options) Complete() error {
	if o.Format == "" {
		o.Format = Raw
		if path, _, _ := strings.Cut(o.URL, "?"); strings.HasSuffix(path, ".safetensors") {
			o.Format = Safetensors
		}
	}
	if err := cmp.Or(guests.OneOf("--format", o.Format, Raw, Records, Safetensors),
		guests.Bytes("--size", o.Size, maxSize),
		guests.Number("--connections", o.Connections, 1, maxConnections), guests.Bytes("--range", o.Range, maxRange),
		guests.Patience("--timeout", o.Timeout), guests.Patience("--retry", o.Retry), guests.Modes(o.Modes)); err != nil {
		return err
	}
	var lines strings.Builder
	_ = o.Header.Write(&lines) // as they are sent: NAME: VALUE CR LF
	each, records := o.Record*o.Batch, o.Format == Records
	switch {
	case o.Step < 0 || o.Step > time.Hour:
		return fmt.Errorf("--step %v: up to 1h", o.Step)
	case o.SHA256 != "" && (len(o.SHA256) != 64 || strings.Trim(strings.ToLower(o.SHA256), "0123456789abcdef") != ""):
		return fmt.Errorf("--sha256 %s: not 64 hexadecimal digits", o.SHA256)
	case o.SHA256 != "" && records:
		return errors.New("--sha256 is of all that lands, and of records only the last batches are there at the end")
	case !records && (o.Step > 0 || o.Skip > 0):
		return fmt.Errorf("--step and --skip are of --format %s", Records)
	case lines.Len() > maxHeader:
		return fmt.Errorf("--header: %d bytes, %d at most", lines.Len(), maxHeader)
	case records && (o.Record == 0 || o.Batch == 0 || o.Prefetch < 1 || each/o.Record != o.Batch || each > maxSize ||
		o.Prefetch > maxPrefetch):
		return fmt.Errorf("--record %s, --batch %d, --prefetch %d: from 1 on, and no more than GPU memory has",
			lab.FormatBytes(o.Record), o.Batch, o.Prefetch)
	}
	if err := loader.CheckHeader(o.Header); err != nil {
		return fmt.Errorf("--header: %w", err)
	}
	if err := o.parse(); err != nil {
		return err
	}
	return o.fit()
}

// parse reads the URL, and opens the port of this machine that it names.
func (o *Options) parse() (err error) {
	if o.URL == "" {
		return nil
	}
	if o.url, err = url.Parse(o.URL); err != nil {
		return fmt.Errorf("%q is not a URL", o.URL)
	}
	switch {
	case o.url.Scheme == "https":
		return fmt.Errorf("%s: https: a TLS record cannot be decrypted in device memory here: use http", o.URL)
	case o.url.Scheme != "http" || o.url.Host == "":
		return fmt.Errorf("%s: http://HOST[:PORT]/PATH is wanted", o.URL)
	}
	if local(o.url.Hostname()) && o.Gateway.HostPorts == "" && !o.Gateway.Off() {
		o.Gateway.HostPorts = cmp.Or(o.url.Port(), "80")
	}
	return nil
}

// Serve starts the server that a command without a URL has; nil: there is a URL. The caller closes it.
func (o *Options) Serve() (s *webfile.Server, err error) {
	if o.URL != "" {
		return nil, nil //nolint:nilnil // as documented
	}
	f := &webfile.File{Name: "data", Size: o.Size, Seed: o.Seed}
	switch o.Format {
	case Records: // whole ones
		f.Size = max(1, (o.Size-min(o.Size, o.Skip))/o.Record)*o.Record + o.Skip
	case Safetensors:
		f.Name = "model.safetensors"
		f.Head, f.Size, err = webfile.Model(o.Size)
	}
	if err == nil {
		s, err = webfile.Serve(f, 2*maxConnections)
	}
	if err != nil {
		return nil, err
	}
	o.URL = s.URL
	return s, o.parse()
}

// local reports whether a host is this machine, which guests reach as the gateway.
func local(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || strings.HasSuffix(strings.ToLower(host), ".localhost") ||
		err == nil && a.IsLoopback()
}

// fit finds how much GPU memory there is for data.
func (o *Options) fit() error {
	name, has, err := o.Only()
	if err != nil {
		return err
	}
	if has < guests.Pool+1<<20 {
		return fmt.Errorf("guest %s can use %s of its GPU's memory, and %s are for pages alone: a larger --gpu-memory",
			name, lab.ShowBytes(has), lab.FormatBytes(guests.Pool))
	}
	o.room = (has - guests.Pool) &^ (devmem.PageSize - 1)
	need := o.Record * o.Batch * uint64(o.Prefetch)
	switch {
	case o.Format == Records && need > o.room:
		return fmt.Errorf("%d batches of %d records of %s: guest %s has room for %s: a larger --gpu-memory, or a smaller "+
			"--prefetch or --batch", o.Prefetch, o.Batch, lab.ShowBytes(o.Record), name, lab.FormatBytes(o.room))
	case o.Format == Records:
		o.room = guests.Pages(need)
	case o.Format == Raw && o.URL == "":
		o.room = min(o.room, guests.Pages(o.Size))
	}
	o.Window = guests.Pool + o.room
	return o.Check()
}

// ParseHeader reads NAME: VALUE.
func ParseHeader(h http.Header, s string) error {
	name, value, ok := strings.Cut(s, ":")
	if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsAny(s, "\r\n") {
		return fmt.Errorf("%q: NAME: VALUE", s)
	}
	h.Add(name, strings.TrimSpace(value))
	return nil
}
