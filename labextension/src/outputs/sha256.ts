/** SHA-256 of a text: browsers have one too, but not on pages that come over plain http. */

/** The first 32 bits of the fractional parts of roots of the first primes. */
function rootsOfPrimes(count: number, exponent: number): Uint32Array {
  const found = new Uint32Array(count);
  let have = 0;
  for (let candidate = 2; have < count; candidate += 1) {
    let isPrime = true;
    for (let divisor = 2; divisor * divisor <= candidate; divisor += 1) {
      isPrime &&= candidate % divisor !== 0;
    }
    if (isPrime) {
      const root = candidate ** exponent;
      found[have] = (root - Math.floor(root)) * 2 ** 32;
      have += 1;
    }
  }
  return found;
}

const ROUNDS = 64;
const BLOCK_BYTES = 64;
const START = rootsOfPrimes(8, 1 / 2);
const CONSTANTS = rootsOfPrimes(ROUNDS, 1 / 3);

function rotate(value: number, bits: number): number {
  return (value >>> bits) | (value << (32 - bits));
}

/** The digest of a text's UTF-8, in hexadecimal. */
export function sha256(text: string): string {
  const bytes = new TextEncoder().encode(text);
  // The text, a one bit, and the length in bits at the end of the last block.
  const blocks = Math.ceil((bytes.length + 9) / BLOCK_BYTES);
  const padded = new Uint8Array(blocks * BLOCK_BYTES);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, (bytes.length * 8) >>> 0);
  const hash = Uint32Array.from(START);
  const words = new Uint32Array(ROUNDS);
  for (let offset = 0; offset < padded.length; offset += BLOCK_BYTES) {
    addBlock(hash, words, view, offset);
  }
  return [...hash].map(one => one.toString(16).padStart(8, '0')).join('');
}

/** One block of FIPS 180-4, section 6.2.2. */
function addBlock(
  hash: Uint32Array,
  words: Uint32Array,
  view: DataView,
  offset: number
): void {
  const at = (index: number): number => words[index] ?? 0;
  for (let t = 0; t < ROUNDS; t += 1) {
    if (t < 16) {
      words[t] = view.getUint32(offset + 4 * t);
      continue;
    }
    const before = at(t - 15);
    const last = at(t - 2);
    const s0 = rotate(before, 7) ^ rotate(before, 18) ^ (before >>> 3);
    const s1 = rotate(last, 17) ^ rotate(last, 19) ^ (last >>> 10);
    words[t] = at(t - 16) + s0 + at(t - 7) + s1;
  }
  let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = hash;
  for (let t = 0; t < ROUNDS; t += 1) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const choice = (e & f) ^ (~e & g);
    const first = (h + s1 + choice + (CONSTANTS[t] ?? 0) + at(t)) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const majority = (a & b) ^ (a & c) ^ (b & c);
    [h, g, f, e, d, c, b, a] = [
      g,
      f,
      e,
      (d + first) | 0,
      c,
      b,
      a,
      (first + s0 + majority) | 0
    ];
  }
  [a, b, c, d, e, f, g, h].forEach((value, index) => {
    hash[index] = (hash[index] ?? 0) + value;
  });
}
