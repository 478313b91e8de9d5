// Package uitest checks the page of "stowage ui" in a browser: Debian's chromium, without a screen. It is a
// module of its own, so that stowage does not depend on the driver of the browser.
package uitest
