package uplink

import (
	"errors"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]string{ // want is a part of the error; "": Parse accepts s, and String returns it
		"vxlan=192.0.2.1:4789,192.0.2.2:4789,42":        "",
		"vxlan=[2001:db8::1]:4789,[2001:db8::2]:4789,0": "",
		"vxlan=0.0.0.0:4789,192.0.2.2:4789,16777215":    "",
		"tap=tap0":                            "",
		"stream=listen:/tmp/x.sock":           "",
		"stream=connect:./x.sock":             "",
		"stream=connect:localhost:1234":       "",
		"":                                    "not vxlan=",
		"tap":                                 "an uplink is one of",
		"tap=":                                "an uplink is one of",
		"tap=a-name-that-is-16":               `"a-name-that-is-16" is no name of a device: 1 to 15 bytes`,
		"tap=../x":                            "is no name of a device",
		"tun=tun0":                            "not vxlan=",
		"vxlan=192.0.2.1:4789,192.0.2.2:4789": "not vxlan=",
		"vxlan=192.0.2.1,192.0.2.2:4789,1":    "local is an address and a port",
		"vxlan=192.0.2.1:4789,192.0.2.2:0,1":  "remote is an address and a port",
		"vxlan=192.0.2.1:4789,192.0.2.2:4789,16777216": "VNI 16777216: 0 to 16777215",
		"vxlan=192.0.2.1:4789,192.0.2.2:4789,x":        "VNI x: 0 to 16777215",
		"vxlan=192.0.2.1:4789,[2001:db8::2]:4789,1":    "both of IPv4, or both of IPv6",
		"vxlan=192.0.2.1:4789,192.0.2.1:4789,1":        "are the same",
		"vxlan=192.0.2.1:4789,239.1.1.1:4789,1":        "a group's address",
		"vxlan=192.0.2.1:4789,0.0.0.0:4789,1":          "nobody's address",
		"stream=/tmp/x.sock":                           "not vxlan=",
		"stream=listen:":                               "listen or connect",
		"stream=connect:host":                          "HOST:PORT",
		"stream=connect:host:99999":                    "HOST:PORT",
		"stream=listen:/" + string(make([]byte, 107)):  "has 107 at most",
	} {
		c, err := Parse(s)
		if want != "" {
			testkit.ErrorSays(t, err, want)
			continue
		}
		testkit.OK(t, err)
		testkit.Equal(t, "written", c.String(), s)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("vxlan=192.0.2.1:4789,192.0.2.2:4789,42")
	f.Add("tap=tap0")
	f.Add("stream=listen:./x")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(c.String())
		if err != nil || again.String() != c.String() {
			t.Fatalf("%q: %q, %v", s, again.String(), err)
		}
	})
}

func TestConfigOfTwoThings(t *testing.T) {
	c := Config{Tap: "tap0", Stream: &Stream{Listen: "./x"}}
	if bad := (*Error)(nil); !errors.As(c.Check(), &bad) || bad.Key != "" {
		t.Error(c.Check())
	}
}
