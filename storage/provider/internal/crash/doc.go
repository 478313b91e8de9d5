// Package crash names the steps between which a process may die.
//
// Code calls [At] between any two effects that outlive the process: a record, a file, a
// device, a mount. The call does nothing, and costs nothing, unless the program is built with
// the tag "faults", as the fault suite is. With that tag, a hook is called at each step and
// may kill the process or cut the power there.
package crash
