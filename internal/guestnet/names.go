package guestnet

import (
	"fmt"
	"strconv"
	"strings"
)

// DevmemHost is the difference between the last bytes of two default addresses of a guest: of its kernel, and of its
// devmem programs. The kernel of guest i, from 0 on, has the address that ends in i+1. A lab file can give other
// addresses, and further names.
const DevmemHost = 100

// GuestName begins a guest's name (HostName): the number of the guest, from 0 on, follows it.
const GuestName = "guest"

// HostName returns the name of guest i, from 0 on: "guest0". A lab file can add another one.
func HostName(i int) string { return fmt.Sprint(GuestName, i) }

// DevmemNameOf returns DevmemName of the guest whose HostName is host; false: host is not a result of HostName.
func DevmemNameOf(host string) (string, bool) {
	i, err := strconv.Atoi(strings.TrimPrefix(host, GuestName))
	if err != nil || host != HostName(i) {
		return "", false
	}
	return DevmemName(i), true
}

// DevmemName returns the name of the address that guest i's devmem programs have on the first of their NICs.
func DevmemName(i int) string { return HostName(i) + "-devmem" }
