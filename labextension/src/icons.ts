/** The extension's icon, for the side bar, the palette and the menu. */

import { LabIcon } from '@jupyterlab/ui-components';

export const ivyIcon = new LabIcon({
  name: 'ivy-kernel:ivy',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <path class="jp-icon3 jp-icon-selectable" fill="#616161" d="M12 1.5 15 6l4.6-.5-1 4.5L22.5 14l-5 1.5L13 19v3.5h-2V19l-4.5-3.5-5-1.5 3.9-4-1-4.5L9 6l3-4.5Zm0 6-4.1 4.6 1.5-.4 1.6 3.3V11h2v4l1.6-3.3 1.5.4L12 7.5Z"/>
</svg>`
});
