// Command vnic-guest is /init of vnic's guests.
package main

func main() {}
