// Package poolmanager manages pools: providers with settings, under the names that users write
// in directives.
//
// A [Manager] applies the rules. A [Store], supplied by the embedder, keeps the pools that
// users make. The providers of a registry also bring default pools, which no store keeps: one
// pool named after each provider's type, and those of [storage.Provider].DefaultPools. Default
// pools can be used like other pools. They cannot be replaced or removed, and no new pool can
// take their names. If two providers bring a default pool of the same name, the first provider
// in the registry's order wins.
//
// A later version of a provider may bring a default pool whose name a user's pool already has.
// The user's pool then keeps the name and hides the default pool. It can be replaced and
// removed like any other.
//
// A pool is looked up when storage is added. Storage that exists does not change with its
// pool. So a pool in use may get other settings. It may not get another provider, and cannot
// be removed, so that its name remains true of the storage that carries it.
//
// A store that changes pools and other data in one transaction can use the rules alone, as
// [Rules].
package poolmanager
