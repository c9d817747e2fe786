package stat

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func TestChange(t *testing.T) {
	dir := place(t)
	s := start(t, Options{})
	change := testkit.Must(lab.ParseChange("link a.nic0 loss=1%"))(t)
	err := Change(t.Context(), os.Getpid(), change)
	if err == nil || !strings.Contains(err.Error(), "its lab is not there yet") {
		t.Errorf("without a lab: %v", err)
	}
	var got []string
	f := func(c lab.Change) error {
		if got = append(got, c.String()); len(got) > 1 {
			return errors.New("not twice")
		}
		return nil
	}
	s.lab.Store(&watched{change: f})
	testkit.OK(t, Change(t.Context(), os.Getpid(), change))
	if err := Change(t.Context(), os.Getpid(), change); err == nil || err.Error() != "not twice" {
		t.Errorf("%v", err)
	}
	if len(got) != 2 || got[0] != "link a.nic0 loss=1%" {
		t.Errorf("%q", got)
	}
	const hello = `"hello":{"protocol":2}`
	for line, want := range map[string]string{
		`{"id":1,"op":"get",` + hello + "}\n": `"get\" is nothing`, `{"id":1,"op":"set","args":"x",` + hello + "}\n": "not a change, as link a.nic0",
		`{"id":1,"op":"set","args":"link a los=1",` + hello + "}\n": "a link has no",
		`{"id":1,"op":"set","args":1,` + hello + "}\n":              "cannot unmarshal", `{"id":1,"op":"set",` + hello + "}": "unexpected end",
		`{"id":1,"op":"snapshot",` + hello + "}\n": `"ok":{"schema":1`,
		strings.Repeat("x", 2*maxRequest):          "is of an older vnic", "\n": "is of an older vnic"} {
		b := tell(t, dir, line)
		if !strings.Contains(strings.ReplaceAll(b, `\"`, `"`), strings.ReplaceAll(want, `\"`, `"`)) &&
			len(line) <= maxRequest {
			t.Errorf("%.20q: %s, not %s", line, b, want)
		}
	}
	self(t)
	if err := Change(t.Context(), 1<<30, change); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
}

func answer(l net.Listener, says string) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = bufio.NewReader(c).ReadString('\n')
	_, _ = io.WriteString(c, says)
}

func tell(t *testing.T, dir, line string) string {
	c := testkit.Must(net.Dial("unix", filepath.Join(dir, socketName())))(t)
	defer c.Close()
	_, _ = io.WriteString(c, line)
	testkit.OK(t, c.(*net.UnixConn).CloseWrite())
	b, _ := io.ReadAll(c)
	return string(b)
}

// vnic 780d5150 sends nothing to get a snapshot, and prints the refusal of a change.
//
// Invariant: vnic stat: A client of another protocol is refused by one line that names both versions.
func TestClientOfAnotherVnicIsRefused(t *testing.T) {
	dir := place(t)
	start(t, Options{})
	this := fmt.Sprintf(", this is vnic (devel) (protocol 2): ask with the program of process %d, /proc/%[1]d/exe",
		os.Getpid())
	const older = "who asks is of an older vnic, which does not say its version"
	for line, want := range map[string]string{
		"": older, "set link a loss=1%\n": older,
		`{"id":1,"op":"snapshot","hello":{"protocol":3,"vnic":"v9"}}` + "\n": "who asks is of vnic v9 (protocol 3)",
		`{"id":1,"op":"snapshot","hello":{"protocol":2,"vnic":"v9"}}` + "\n": "",
	} {
		var old struct { // the fields of an answer that vnic 780d5150 reads
			Done   bool
			Error  string
			Schema int
		}
		testkit.OK(t, json.Unmarshal([]byte(tell(t, dir, line)), &old))
		if want != "" {
			want += this
		}
		testkit.Equal(t, "refusal", old.Error, want)
		if old.Schema != 0 || old.Done {
			t.Errorf("%+v", old)
		}
	}
}

// A server of vnic 780d5150 sends a snapshot if it has not received the request in time, whatever was requested.
func TestServerOfAnotherVnicIsRefused(t *testing.T) {
	dir := place(t)
	testkit.OK(t, os.Mkdir(dir, 0o700))
	l := testkit.Must(net.Listen("unix", filepath.Join(dir, "1"+suffix)))(t)
	defer l.Close()
	const this = ", this is vnic (devel) (protocol 2): ask it with its own program, /proc/1/exe"
	const older = "process 1 is of an older vnic, which does not say its version" + this
	for says, want := range map[string]string{
		`{"schema":1,"pid":1}`: older, `{"done":false,"error":"\"{\" is nothing that this vnic does"}`: older,
		`{"id":1,"hello":{"protocol":3,"vnic":"v9"},"error":"no"}`:   "process 1 is of vnic v9 (protocol 3)" + this,
		`{"id":1,"hello":{"protocol":2,"vnic":"v9"},"ok":{"pid":1}}`: "",
	} {
		for _, f := range []func() error{
			func() error { return Change(t.Context(), 1, testkit.Must(lab.ParseChange("link a loss=1%"))(t)) },
			func() error { return testkit.Err(Read(t.Context(), 1)) },
			func() error { return testkit.Err(Find(t.Context())) },
		} {
			go answer(l, says)
			if err := f(); want == "" {
				testkit.OK(t, err)
			} else if err == nil || err.Error() != want {
				t.Errorf("%s: %v, not %s", says, err, want)
			}
		}
	}
}
