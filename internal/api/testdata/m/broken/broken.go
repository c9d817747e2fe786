package broken

var X int = "no int"
