package rdma

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}

// TestExchangeAgrees: both ends use the smaller MTU and number of READs in progress, and bytes that follow the exchange
// stay in the connection.
func TestExchangeAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fabric{nics: map[netip.Addr]*fakeNIC{}}
		a, b := open(t, f, 1), open(t, f, 2)
		a.ends.MTU, b.ends.Reads = 512, 3
		b.ends.Offer = Remote{}
		b.ends.Path = func(p *Path) { p.DSCP, p.Timeout = 9, 20 }
		ca, cb := net.Pipe()
		defer ca.Close()
		defer cb.Close()
		var wg sync.WaitGroup
		wg.Go(func() {
			p, err := Exchange(t.Context(), cb, b.qp, b.ends)
			if err != nil || p.Path.MTU != 512 || p.Path.Reads != 3 || p.Path.ReadDepth != 3 || p.MR != a.ends.Offer ||
				p.Path.DSCP != 9 || p.Path.Timeout != 20 || p.Path.MAC != a.ends.MAC {
				t.Errorf("%+v, %v", p, err)
			}
			if _, err := cb.Write([]byte("and more\n")); err != nil {
				t.Error(err)
			}
		})
		p, err := Exchange(t.Context(), ca, a.qp, a.ends)
		if err != nil || p.Path.MTU != 512 || p.Path.Reads != 3 || p.Path.ReadDepth != 16 || p.MR != (Remote{}) ||
			p.Path.DSCP != 0 || p.Path.Timeout != 16 || p.Path.MAC != b.ends.MAC || p.Path.RemoteQPN != b.qp.Number {
			t.Errorf("%+v, %v", p, err)
		}
		if line, err := bufio.NewReader(ca).ReadString('\n'); line != "and more\n" || err != nil {
			t.Errorf("%q, %v", line, err)
		}
		wg.Wait()
		closeAll(t, a, b)
	})
}

func TestDialAndAccept(t *testing.T) {
	f := &fabric{nics: map[netip.Addr]*fakeNIC{}}
	a, b := open(t, f, 1), open(t, f, 2)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		c, p, err := Accept(ctx, l, b.qp, b.ends)
		if err != nil || p.MR != a.ends.Offer {
			t.Errorf("%+v, %v", p, err)
			return
		}
		testkit.NoError(t, c.Close())
	})
	c, p, err := Dial(ctx, l.Addr().String(), a.qp, a.ends)
	testkit.OK(t, err)
	defer c.Close()
	_, err = Put(ctx, a.qp, a.mr.Part(0, 1<<20), p.MR, TransferOptions{Size: 10_000})
	testkit.NoError(t, err)
	wg.Wait()
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	closeAll(t, a, b)
}

const good = `{"vnic-rdma":1,"qpn":99,"psn":5,"ip":"10.0.0.2","mac":"02:00:00:00:00:02","mtu":1024,"reads":4}`

// hostile are lines that peers send in place of good, and texts of the error.
var hostile = map[string]struct{ say, want string }{
	"no JSON":       {"hello", "not this exchange"},
	"empty":         {"", "not this exchange"},
	"null":          {"null", "version 0"},
	"other version": {strings.Replace(good, `rdma":1`, `rdma":2`, 1), "version 2"},
	"other field":   {strings.Replace(good, `"psn"`, `"more"`, 1), "unknown field"},
	"behind it":     {good + " {}", "more behind it"},
	"queue pair 0":  {strings.Replace(good, `99`, `0`, 1), "queue pair 0"},
	"queue pair 1":  {strings.Replace(good, `99`, `1`, 1), "queue pair 1"},
	"large number":  {strings.Replace(good, `99`, `16777216`, 1), "queue pair 16777216"},
	"huge number":   {strings.Replace(good, `99`, `1e99`, 1), "not this exchange"},
	"negative":      {strings.Replace(good, `99`, `-1`, 1), "not this exchange"},
	"PSN":           {strings.Replace(good, `"psn":5`, `"psn":16777216`, 1), "PSN 16777216"},
	"no address":    {strings.Replace(good, `10.0.0.2`, ``, 1), "address"},
	"unspecified":   {strings.Replace(good, `10.0.0.2`, `0.0.0.0`, 1), "address"},
	"multicast":     {strings.Replace(good, `10.0.0.2`, `224.0.0.1`, 1), "address"},
	"mapped":        {strings.Replace(good, `10.0.0.2`, `::ffff:10.0.0.2`, 1), "address"},
	"zone":          {strings.Replace(good, `10.0.0.2`, `fe80::1%x`, 1), "address"},
	"family":        {strings.Replace(good, `10.0.0.2`, `fd00::1`, 1), "two families"},
	"no MAC":        {strings.Replace(good, `02:00:00:00:00:02`, `00:00:00:00:00:00`, 1), "MAC"},
	"group MAC":     {strings.Replace(good, `02:00:00:00:00:02`, `03:00:00:00:00:02`, 1), "MAC"},
	"long MAC":      {strings.Replace(good, `02:00:00:00:00:02`, `02:00:00:00:00:02:00:00`, 1), "MAC"},
	"MTU 0":         {strings.Replace(good, `1024`, `0`, 1), "path MTU of 0"},
	"MTU 1000":      {strings.Replace(good, `1024`, `1000`, 1), "path MTU of 1000"},
	"MTU 8192":      {strings.Replace(good, `1024`, `8192`, 1), "path MTU of 8192"},
	"reads":         {strings.Replace(good, `"reads":4`, `"reads":256`, 1), "not this exchange"},
	"key 0":         {strings.Replace(good, `}`, `,"mr":{"key":0,"va":0,"len":1}}`, 1), "memory"},
	"length 0":      {strings.Replace(good, `}`, `,"mr":{"key":1,"va":0,"len":0}}`, 1), "memory"},
	"wrap": {strings.Replace(good, `}`, `,"mr":{"key":1,"va":2,"len":18446744073709551615}}`, 1),
		"memory"},
	"long":      {strings.Repeat("x", maxLine), "a line of more than"},
	"no end":    {strings.Repeat("x", 1<<20), "a line of more than"},
	"deep":      {strings.Repeat("[", maxLine-1), "not this exchange"},
	"bad UTF-8": {"{\"\xff\":1}", "not this exchange"},
}

// TestHostilePeers: after peers that break the protocol another peer can connect.
func TestHostilePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fabric{nics: map[netip.Addr]*fakeNIC{}}
		a := open(t, f, 1)
		try := func(say func(c net.Conn)) error {
			ca, cb := net.Pipe()
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cb.Close()
			defer ca.Close()
			qp := testkit.Must(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: a.cq, MaxSend: 1, MaxRecv: 1}))(t)
			defer func() { testkit.NoError(t, qp.Close()) }()
			wg.Go(func() { say(cb) })
			_, err := Exchange(t.Context(), ca, qp, a.ends)
			return err
		}
		for name, h := range hostile {
			for _, reads := range []bool{true, false} {
				err := try(func(c net.Conn) {
					if reads {
						go io.Copy(io.Discard, c)
					}
					fmt.Fprintf(c, "%s\n", h.say)
				})
				testkit.ErrorIs(t, err, ErrPeer, "%s", name)
				testkit.ErrorIs(t, err, syscall.EPROTO, "%s", name)
				testkit.ErrorSays(t, err, h.want)
				if len(err.Error()) > 4*maxReason {
					t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
				}
			}
		}
		verdicts := func(say string) func(c net.Conn) {
			return func(c net.Conn) {
				go io.Copy(io.Discard, c)
				fmt.Fprintf(c, "%s\n%s\n", good, say)
			}
		}
		for name, say := range map[string]string{
			"cannot": `{"ready":false,"error":"no \u0000 memory"}`, "null": "null", "both": `{"ready":true,"error":"x"}`,
			"no JSON": "ready", "long": strings.Repeat("y", maxLine),
		} {
			testkit.ErrorIs(t, try(verdicts(say)), ErrPeer, "%s", name)
		}
		testkit.ErrorIs(t, try(verdicts(`{"ready":false}`)), syscall.ECONNREFUSED)
		silent := func(net.Conn) {}
		err := try(silent)
		testkit.ErrorIs(t, err, syscall.ETIMEDOUT)
		testkit.ErrorSays(t, err, "more than 30s")
		err = try(func(c net.Conn) {
			go io.Copy(io.Discard, c)
			for i := 0; ; i++ { // a byte a second
				if _, err := c.Write([]byte{good[i%len(good)]}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		testkit.ErrorIs(t, err, syscall.ETIMEDOUT)
		for _, part := range []string{"", good[:20], good + "\n", good + "\n{"} {
			err = try(func(c net.Conn) {
				go io.Copy(io.Discard, c)
				_, _ = io.WriteString(c, part)
				_ = c.Close()
			})
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%q: %v", part, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ca, cb := net.Pipe()
		testkit.ErrorIs(t, testkit.Err(Exchange(ctx, ca, a.qp, a.ends)), context.Canceled)
		_, _ = ca.Close(), cb.Close()
		synctest.Wait()

		testkit.NoError(t, try(verdicts(`{"ready":true}`)))
		b := open(t, f, 2)
		_, _, errA, errB := exchangeOver(t, a, b)
		testkit.NoError(t, errors.Join(errA, errB))
		closeAll(t, a, b)
	})
}

// TestRefusalReachesThePeer has a NIC that refuses to connect: the other end gets the reason.
func TestRefusalReachesThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fabric{nics: map[netip.Addr]*fakeNIC{}}
		a, b := open(t, f, 1), open(t, f, 2)
		a.nic.set(func() { a.nic.noPath = true })
		_, _, errA, errB := exchangeOver(t, a, b)
		testkit.ErrorIs(t, errA, syscall.EINVAL)
		testkit.ErrorIs(t, errB, syscall.ECONNREFUSED)
		testkit.ErrorIs(t, errB, ErrPeer)
		testkit.ErrorSays(t, errB, "no way to the")
		closeAll(t, a, b)
	})
}

func TestOwnEndIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fabric{nics: map[netip.Addr]*fakeNIC{}}
		a := open(t, f, 1)
		for name, change := range map[string]func(e *Ends){
			"address": func(e *Ends) { e.Addr = netip.Addr{} }, "MAC": func(e *Ends) { e.MAC = [6]byte{} },
			"MTU": func(e *Ends) { e.MTU = 1500 }, "too large": func(e *Ends) { e.MTU = 2048 },
			"MR": func(e *Ends) { e.Offer.Key = 0 },
		} {
			e := a.ends
			change(&e)
			testkit.ErrorIs(t, testkit.Err(Exchange(t.Context(), nobody{}, a.qp, e)), syscall.EINVAL, "%s", name)
		}
		closeAll(t, a)
	})
}

type nobody struct{ net.Conn }

// FuzzHear: readLine reads one line and nothing more, and a valid hello keeps its values when it is encoded and decoded
// again.
func FuzzHear(f *testing.F) {
	for _, h := range hostile {
		f.Add([]byte(h.say + "\n"))
	}
	f.Add([]byte(good + "\n"))
	f.Add([]byte(strings.Replace(good, `}`, `,"mr":{"key":7,"va":4096,"len":65536}}`, 1) + "\n"))
	f.Add([]byte(strings.Replace(good, "10.0.0.2", "fd00::2", 1) + "\r\n"))
	f.Add([]byte(`{"ready":false,"error":"no"}` + "\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var v verdict
		_ = readLine(bytes.NewReader(in), &v)
		var h hello
		r := bytes.NewReader(in)
		if err := readLine(r, &h); err != nil || h.check() != nil {
			return
		}
		if taken := len(in) - r.Len(); bytes.IndexByte(in, '\n') != taken-1 || taken > maxLine {
			t.Fatalf("%d bytes were read of %q", taken, in)
		}
		again, err := json.Marshal(h)
		testkit.OK(t, err)
		var same hello
		testkit.OK(t, readLine(bytes.NewReader(append(again, '\n')), &same))
		if same.MR != nil && h.MR != nil && *same.MR == *h.MR {
			same.MR = h.MR
		}
		if same != h {
			t.Fatalf("%+v becomes %+v", h, same)
		}
	})
}
