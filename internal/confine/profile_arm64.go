package confine

// goRuntimeArch is what only this architecture has.
var goRuntimeArch []Call
